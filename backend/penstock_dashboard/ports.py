"""Listening sockets: opening one, and saying who holds a port that is taken."""

from __future__ import annotations

import socket
from pathlib import Path

LISTEN = "0A"
"""TCP state in /proc/net/tcp."""


class PortTaken(OSError):
    """Somebody else listens there; the text says who, where that can be seen."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an exception in words for the person at the terminal."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if port and error.errno in (98, 48):  # EADDRINUSE on Linux and macOS
            raise PortTaken(f"port {port} is taken by {holder(port)}") from None
        raise
    listener.setblocking(False)
    return listener


def holder(port: int) -> str:
    """Who listens on this port, as far as this user may see."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(_inode(link) in inodes for link in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name} ({command[:80]})"
        except OSError:
            continue  # another user's process, or one that has just ended
    return "another program"


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _inode(link: Path) -> str:
    try:
        target = str(link.readlink())
    except OSError:
        return ""
    return target.removeprefix("socket:[").removesuffix("]") if target.startswith("socket:[") else ""
