"""Records what real loaders say: `python -m tests.recorded.record [SITUATION …]`, all at once, for a minute.

The recorder stands where the backend would: it welcomes the loader, acknowledges and keeps what it says.
"""

from __future__ import annotations

import argparse
import threading
import time

import msgspec
from penstock.protocol import PROTOCOL, Ack, Events, Hello, Snapshot, ToBackend, Welcome, loader_id
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from .recording import Recording, save
from .shapes import SITUATIONS
from .stage import Stage

SECONDS = 60.0
"""How long a recording is. Most tests need a few seconds of it; those on a busy machine need more."""
_to_backend = msgspec.msgpack.Decoder(ToBackend)


class Recorder:
    """Takes in what loaders say, each on a connection of its own."""

    def __init__(self) -> None:
        self.recordings: dict[str, Recording] = {}
        """Run, which is the situation's name, → what its loader has said so far."""
        self._server = serve(self._listen, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def _listen(self, socket: ServerConnection) -> None:
        hello = _to_backend.decode(socket.recv(decode=False))
        assert isinstance(hello, Hello), hello
        identity = hello.identity
        welcome = Welcome(PROTOCOL, loader_id(identity.run, identity.rank, identity.name), at=time.time())
        socket.send(msgspec.msgpack.encode(welcome))
        start = time.time()
        recording = self.recordings[identity.run] = Recording(hello, start, [])
        try:
            while True:
                message = _to_backend.decode(socket.recv(decode=False))
                if isinstance(message, Snapshot | Events):  # all that has a number, and is what it was
                    recording.messages.append((round(time.time() - start, 3), message))
                    socket.send(msgspec.msgpack.encode(Ack(message.seq)))
        except ConnectionClosed:
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("situations", nargs="*", help=f"of {', '.join(SITUATIONS)}; by default all")
    names = parser.parse_args().situations or list(SITUATIONS)
    if unknown := set(names) - set(SITUATIONS):
        parser.error(f"no such situation: {', '.join(sorted(unknown))}")
    recorder = Recorder()
    with Stage() as stage:
        for name in names:
            stage.train(recorder.url, "recorded", SITUATIONS[name], run=name)
        while len(recorder.recordings) < len(names):
            time.sleep(0.1)
        time.sleep(SECONDS)
    recorder.close()
    for name in names:
        recording = recorder.recordings[name]
        print(f"{name}: {len(recording.messages)} messages, {save(name, recording) >> 10} KiB")


if __name__ == "__main__":
    main()
