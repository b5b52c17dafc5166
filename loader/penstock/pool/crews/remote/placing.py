"""Training's end of the placer, the process in which Ray lives. The conductor's thread, but for `open`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ....agent.placer import Settings

TO_REACH_RAY = 180.0
"""Seconds that Ray has to let us in and to start agents: it takes 10, and many times that on a machine that is busy."""
TO_END = 5.0


class Placing:
    """Asks for places and is told of agents."""

    def __init__(self, settings: Settings) -> None:
        """Raises RuntimeError if Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            raise RuntimeError("RayWorkers needs Ray: pip install 'penstock[ray]'")
        self.wanted = 0
        """Places that were asked for."""
        self.room: dict[str, int] = {}
        """Address of each agent → how many workers it has places for."""
        self.short = ""
        """What is missing in the cluster."""
        self.lost = ""
        """Why nothing can be placed any more."""
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.agent.placer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send(dataclasses.asdict(settings))

    def fileno(self) -> int:
        return -1 if self._process.stdout is None else self._process.stdout.fileno()

    def open(self, places: int) -> None:
        """Wait until Ray lets us in and has placed what it can. Raises ConnectionError if it does not."""
        self.want(places)
        deadline = time.monotonic() + TO_REACH_RAY
        while not self.short and sum(self.room.values()) < places:
            left = deadline - time.monotonic()
            if left <= 0 or not self._wait(left):
                raise ConnectionError(f"Ray does not answer within {TO_REACH_RAY:g} s")
            self.hear()
            if self.lost:
                raise ConnectionError(f"Ray cannot be used: {self.lost}")

    def want(self, places: int) -> None:
        """Have so many places in all."""
        if places > self.wanted:
            self.wanted = places
            self._send({"want": places})

    def release(self, used: dict[str, int]) -> None:
        """Give back what is not used."""
        self.wanted = sum(used.values())
        self._send({"used": used})

    def hear(self, gone: Callable[[str, str], None] = lambda *_: None) -> None:
        """Read what the placer said; `gone` is called for agents that have ended."""
        data = os.read(self.fileno(), 65536)
        if not data:
            self.lost = self.lost or "the placer has ended: the cluster's head is gone, perhaps"
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._heed(json.loads(line), gone)

    def end(self) -> None:
        """The placer ends with its input; Ray then ends what it started."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _heed(self, said: dict[str, Any], gone: Callable[[str, str], None]) -> None:
        match said:
            case {"failed": why}:
                self.lost = why
            case {"agent": address, "room": room}:
                self.room[address] = room
                self.short = ""
            case {"gone": address, "why": why}:
                self.room.pop(address, None)
                gone(address, why)
            case {"short": why}:
                self.short = why

    def _send(self, order: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # its end is seen by reading
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()

    def _wait(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(seconds * 1000))
