"""The bus on Redis: published and heard at once, kept nowhere.

Every replica listens to two channels, one for all and one of its own. What is sent within 10 ms goes in one packet,
which is signed with the key of the token file, that all replicas share: what others publish there is not listened to.
It is not encrypted: `rediss://` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections import deque

import msgspec
from redis import asyncio as redis
from redis.exceptions import RedisError

from . import Bus

log = logging.getLogger("penstock.bus")

GATHERED = 0.01
"""Seconds for which messages wait for others."""
PACKET = 1 << 20
"""Bytes of messages in one packet, about."""
MOST_WAITING = 16 << 20
"""Bytes that may wait to be sent; beyond it the oldest go."""
LARGEST = 8 << 20
"""Bytes of a packet that is listened to."""
AGAIN = 0.5
"""Seconds between two attempts to reach the server."""
SIGNATURE = 32

_packets = msgspec.msgpack.Decoder(list[bytes])


class OnRedis(Bus):
    """Reaches all replicas that use the same server and the same token file."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__()
        self._key = hashlib.sha256(f"penstock bus {key}".encode()).digest()
        self._prefix = ""
        self._client = redis.Redis.from_url(
            url, socket_connect_timeout=5, socket_keepalive=True, health_check_interval=5
        )
        self._name = ""
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._bell = asyncio.Event()
        self._listening = asyncio.Event()
        self._failing: set[str] = set()
        """Which of listening and publishing does not work."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, name: str, among: str) -> None:
        self._name = name
        self._prefix = f"penstock-{hmac.digest(self._key, among.encode(), 'sha256').hex()[:16]}"
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._publish())]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._listening.wait()

    async def stop(self) -> None:
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    def send(self, message: bytes, to: str = "") -> None:
        self._waiting.append((f"{self._prefix}:{to or 'all'}", message))
        self._size += len(message)
        while self._size > MOST_WAITING:
            self._size -= len(self._waiting.popleft()[1])
        self._bell.set()

    async def _publish(self) -> None:
        while True:
            await self._bell.wait()
            await asyncio.sleep(GATHERED)
            self._bell.clear()
            try:
                await self._flush()
                self._works("publishing")
            except (RedisError, OSError) as error:
                self._fails("publishing", error)
                await asyncio.sleep(AGAIN)

    async def _flush(self) -> None:
        while self._waiting:
            packets: dict[str, list[bytes]] = {}
            size = 0
            while self._waiting and size < PACKET:
                channel, message = self._waiting.popleft()
                packets.setdefault(channel, []).append(message)
                size += len(message)
            self._size -= size
            pipeline = self._client.pipeline(transaction=False)
            for channel, messages in packets.items():
                pipeline.publish(channel, self._signed(channel, msgspec.msgpack.encode(messages)))
            await pipeline.execute()

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=False) as heard:
                    await heard.subscribe(f"{self._prefix}:all", f"{self._prefix}:{self._name}")
                    async for message in heard.listen():
                        if message["type"] == "message":
                            self._hear(message["channel"].decode(), message["data"])
                        elif message["type"] == "subscribe" and message["channel"].decode().endswith(self._name):
                            # The last of both: at the start, and whenever the connection was made again.
                            self._listening.set()
                            self._works("listening")
                            self.on_restored()
            except (RedisError, OSError) as error:
                self._fails("listening", error)
            self._listening.clear()
            await asyncio.sleep(AGAIN)

    def _hear(self, channel: str, data: bytes) -> None:
        signature, packet = data[:SIGNATURE], data[SIGNATURE:]
        if len(data) > LARGEST or not hmac.compare_digest(self._sign(channel, packet), signature):
            log.warning("a message on the bus is not from a replica with the same token file; it is ignored")
            return
        for message in _packets.decode(packet):
            try:
                self.on_message(message)
            except Exception:
                log.exception("a message of another replica could not be dealt with")

    def _signed(self, channel: str, packet: bytes) -> bytes:
        return self._sign(channel, packet) + packet

    def _sign(self, channel: str, packet: bytes) -> bytes:
        return hmac.digest(self._key, channel.encode() + b"\0" + packet, "sha256")

    def _works(self, what: str) -> None:
        self._failing.discard(what)
        if not self._failing:
            self.warning = ""

    def _fails(self, what: str, error: Exception) -> None:
        if not self._failing:
            log.error("the bus cannot be reached: %s", type(error).__name__)
        self._failing.add(what)
        self.warning = "The bus cannot be reached: what is connected at other replicas is not shown live."
