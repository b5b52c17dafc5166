"""The zygote: a single-threaded process, started once per pool, from which the workers are forked.

It exists so that growing the pool never forks the threaded training process, and so that `spawn` imports and
unpickles once rather than once a worker. It does four things: fork a worker when told to, pass on signals, report
exits, and see to it that no worker outlives the pool:

1. The zygote is the workers' parent. It alone signals and reaps them, so no signal ever reaches a stranger that got
   a recycled pid.
2. When training ends, is killed, or closes the pool, the zygote's channel reaches its end. The zygote then kills
   every worker, reaps it, and exits. It waits in no other place than on that channel, so this takes milliseconds.
3. When the zygote itself is killed, the system kills the workers (PR_SET_PDEATHSIG). Where the system cannot, a
   thread in each worker does, which reads a pipe, the lifeline, whose other end only the zygote holds.
4. Nobody else holds the zygote's channel: `channel` closes inherited ends in every forked process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from multiprocessing import popen_fork, process
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ...failures import Failure
from ..tasks import Recipe
from .board import Board
from .channel import Channel, ChannelClosedError
from .messages import Birth, CtrlC, Exited, Fork, Forked, Kill, Message, NotForked, NotReady, Ready, pack, unpack
from .parcel import Parcel
from .worker_process import WorkerProcess

STACK_SIGNAL = signal.SIGUSR2 if not hasattr(signal, "SIGRTMIN") else signal.SIGRTMIN + 11
"""Makes a worker write its Python stack to the pool's stack pipe, whatever it is doing."""

_PR_SET_PDEATHSIG = 1
HAS_PRCTL = hasattr(ctypes.CDLL(None), "prctl")


class _Zygote:
    def __init__(self, channel: Channel, recipe: Recipe, board: Board, stacks: int) -> None:
        self._channel = channel
        self._recipe = recipe
        self._board = board
        self._stacks = stacks
        self._workers: dict[int, Any] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self._lifeline = None if HAS_PRCTL else os.pipe()
        self._interrupted = False

    def run(self) -> None:
        self._prepare_signals()
        # Nothing from before is ever collected, so the collector need not write to the pages that workers share.
        gc.freeze()
        # Python's own rule against children of daemons is about orphans; ours cannot become any (see above).
        process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        self._channel.send(pack(Ready(os.getpid())))
        poll = self._poll()
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._wake_read.fileno() in ready:
                    self._wake_read.recv(4096)
                    self._reap()
                    if self._interrupted:
                        self._interrupted = False
                        self._channel.send(pack(CtrlC()))
                if self._channel.fileno() in ready:
                    for packed in self._channel.receive_ready():
                        self._handle(unpack(packed))
        except ChannelClosedError:
            pass
        finally:
            self._end_all()

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        return poll

    def _prepare_signals(self) -> None:
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGINT, self._note_interrupt)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # a worker that is asked before it can answer must not die of it

    def _note_interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Ctrl-C goes to the whole group. Training decides what it means; if that is the end, it shall be quick."""
        self._interrupted = True

    def _handle(self, message: Message) -> None:
        if isinstance(message, Fork):
            self._fork(message.key, message.birth)
        elif isinstance(message, Kill):
            worker = self._workers.get(message.key)
            if worker is not None and worker.exitcode is None:
                os.kill(worker.pid, message.signal)

    def _fork(self, key: int, birth: Birth) -> None:
        descriptor = self._channel.descriptors.popleft()
        worker = _WorkerProcess(
            target=work,
            args=(
                self._recipe,
                birth,
                descriptor,
                self._board,
                self._stacks,
                os.getpid(),
                self._wake_read,
                self._lifeline,
            ),
            name=f"loader-worker-{birth.worker}",
            daemon=True,
        )
        try:
            worker.start()
        except OSError as error:
            self._channel.send(pack(NotForked(key, f"{error}")))
        else:
            self._workers[key] = worker
            self._channel.send(pack(Forked(key, worker.pid or 0)))
        finally:
            os.close(descriptor)

    def _reap(self) -> None:
        for key, worker in list(self._workers.items()):
            if worker.exitcode is not None:
                del self._workers[key]
                self._channel.send(pack(Exited(key, worker.pid, worker.exitcode)))
                worker.close()

    def _end_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.join()
        self._workers.clear()


class _WorkerProcess(ForkProcess):
    keeps: Channel | None = None
    """The end of the channel tells of the end of the process: it must not come with that of `work`."""

    def _bootstrap(self, *arguments: Any, **named: Any) -> int:
        """Everything is done, exit handlers included. What the process had open is free from now on, to be had by
        whoever comes next; and training, which sees the end of its channel, need not wait until the system has taken
        the memory apart, which it does first.
        """
        code: int = super()._bootstrap(*arguments, **named)  # type: ignore[misc]
        if hasattr(popen_fork, "atexit"):
            atexit._run_exitfuncs()  # newer Pythons (3.13.5, 3.14) do so only after this
        try:
            descriptors = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
        except OSError:
            descriptors = list(range(3, 256))
        for descriptor in descriptors:
            if descriptor > 2:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        return code


def run_zygote(sock: socket.socket, parcel: Parcel, rows: int) -> None:
    """Entry of the zygote process. The board's and the stack pipe's descriptors arrive over `sock`."""
    channel = Channel(sock, blocking=True)
    torch.set_num_threads(1)
    with contextlib.suppress(ChannelClosedError, KeyboardInterrupt):
        try:
            recipe = parcel.open()
        except Exception as error:
            channel.send(pack(NotReady(Failure.capture(error, "while the dataset was unpickled for the workers"))))
            return
        channel.receive()
        board_descriptor, stacks = channel.descriptors.popleft(), channel.descriptors.popleft()
        board = Board(board_descriptor, rows)
        os.close(board_descriptor)
        _Zygote(channel, recipe, board, stacks).run()


def work(
    recipe: Recipe,
    birth: Birth,
    descriptor: int,
    board: Board,
    stacks: int,
    parent: int,
    wake_read: socket.socket,
    lifeline: tuple[int, int] | None,
) -> None:
    """Entry of a worker process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, _ignore)
    wake_read.close()
    _die_with(parent, lifeline)
    channel = Channel(socket.socket(fileno=descriptor), blocking=True)
    _WorkerProcess.keeps = channel
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    try:
        WorkerProcess(recipe, birth, channel, board).run()
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        raise


def _die_with(parent: int, lifeline: tuple[int, int] | None) -> None:
    """See to it that this process is killed when the zygote dies."""
    if lifeline is None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        os.close(lifeline[1])
        threading.Thread(target=_hold, args=lifeline[:1], name="loader-lifeline", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _hold(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler rather than SIG_IGN: programs that a worker starts get the default back."""
