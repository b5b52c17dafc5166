"""`penstock dashboard`: start the backend, say where it is, and end it cleanly."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import logging
import os
import re
import resource
import shlex
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from penstock import discovery

from .alerts.rules import RULES, Rules
from .app import create_app
from .bus.opening import REDIS, open_bus
from .core import Backend
from .ports import PortTaken, listen
from .security.hosts import is_loopback
from .security.links import Links, fragment
from .security.tokens import Keyring, UnusableTokenFile
from .server import make_server
from .settings import DAY, HOUR, MINUTE, AlertSettings, Retention, Settings
from .store import Unavailable
from .store.opening import POSTGRES
from .store.sqlite.space import MIN_SIZE
from .token_command import default_token_file

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]

UNITS = {"s": 1.0, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("dashboard", help="start the dashboard")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    add("--port", type=int, default=8787, help="0 picks a free one")
    add("--data", default=None, help="folder of the database, or :memory: (default: the state folder)")
    add(
        "--store",
        default=os.environ.get("PENSTOCK_STORE", ""),
        type=_store,
        metavar="URL",
        help="a PostgreSQL database instead of --data, which several replicas share: postgresql://… ($PENSTOCK_STORE)",
    )
    add(
        "--bus",
        default=os.environ.get("PENSTOCK_BUS", ""),
        type=_bus,
        metavar="URL",
        help="a Redis server through which replicas on one --store hear of each other: redis://… ($PENSTOCK_BUS)",
    )
    add(
        "--retention",
        type=_retention,
        default=Retention(),
        metavar="FULL,10S,1MIN",
        help="how long samples and buckets are kept, for example 1h,1d,30d, or only the last",
    )
    add("--max-size", type=_size, default=None, metavar="SIZE", help="most the database may take (4G)")
    add("--read-only", action="store_true", help="nobody can send commands")
    add("--token-file", type=Path, default=None, help="default: tokens.json in the state folder")
    add("--public-url", default="", type=_url, help="the address people use, if a proxy stands in front")
    add("--root-path", default=None, help="the proxy's prefix (default: the path of --public-url)")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name for this server; repeatable",
    )
    add(
        "--frame-ancestor",
        action="append",
        default=[],
        type=_url,
        metavar="ORIGIN",
        help="a page that may show the dashboard in a frame; repeatable",
    )
    add(
        "--exit-when-idle",
        type=float,
        default=None,
        metavar="SECONDS",
        help="end after so long without anybody",
    )
    add(
        "--alerts",
        type=_rules,
        default=Rules(),
        metavar="RULE[=TIME],…",
        help=f"what to alert of: {', '.join(RULES)} (default: all, data-bound=5m, stalled=1m, memory=10m), or none",
    )
    add(
        "--alert-webhook",
        action="append",
        default=[],
        type=_webhook,
        metavar="URL",
        help="post every alert there as JSON; repeatable",
    )
    add(
        "--alert-command",
        action="append",
        default=[],
        type=_command,
        metavar="COMMAND",
        help="run this for every alert, with the alert as JSON on its standard input; repeatable",
    )
    add("--no-discovery", action="store_true", help="do not tell local loaders about this dashboard")
    add("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        level=arguments.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # At lower levels these write down headers and addresses, and with them whatever secret a client sends.
    for name in ("uvicorn", "uvicorn.error", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)
    settings = settings_from(arguments)
    if settings.bus and not settings.store:
        return _fail("--bus needs --store: replicas share their records")
    with contextlib.ExitStack() as held:
        if settings.announce:
            held_it = _hold(held, _lock_path())
            if held_it is None:
                settings = _without(settings, announce=False)
            elif not held_it:
                return _already_running()
        if settings.data is not None and not settings.store:
            held_it = _hold(held, settings.data / "penstock.lock")
            if held_it is None:
                settings = _without(settings, data=None)
            elif not held_it:
                return _fail(f"another dashboard uses {settings.data}; choose another --data")
        try:
            settings, keyring = _keyring(settings)
            listener = held.enter_context(listen(settings.host, settings.port))
        except (PortTaken, UnusableTokenFile, OSError) as error:
            return _fail(f"{error}" + ("; --port 0 picks a free one" if isinstance(error, PortTaken) else ""))
        _spare_the_collector()
        return _serve(settings, keyring, listener)


def _spare_the_collector() -> None:
    """Thousands of loaders are very many objects, of which hardly one is ever part of a cycle: look for these rarely,
    and not among what was there from the start.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _keyring(settings: Settings) -> tuple[Settings, Keyring]:
    local = os.environ.get("PENSTOCK_TOKEN", "")
    try:
        return settings, Keyring(settings.token_file, local)
    except OSError:
        return _without(settings, token_file=None), Keyring(None, local)


NOTICES = {
    "data": "Nothing can be written to {}: everything is kept in memory and is lost when the dashboard ends.",
    "token_file": "The tokens cannot be written to {}: they hold until the dashboard ends.",
    "announce": "Nothing can be written to {}: local loaders do not find this dashboard by themselves.",
}


def _without(settings: Settings, **what: Any) -> Settings:
    """A start that goes on without something, with a word about it: here and, if data is at risk, on the page."""
    ((name, value),) = what.items()
    where = discovery.discovery_path().parent if name == "announce" else getattr(settings, name)
    notice = NOTICES[name].format(where)
    print(f"Warning: {notice}", file=sys.stderr, flush=True)
    if name == "data":
        settings = msgspec.structs.replace(settings, notice=notice[:256])
    return msgspec.structs.replace(settings, **{name: value})


def settings_from(arguments: argparse.Namespace) -> Settings:
    root_path = arguments.root_path if arguments.root_path is not None else urlsplit(arguments.public_url).path
    retention: Retention = arguments.retention
    if arguments.max_size is not None:
        retention = Retention(retention.samples, retention.ten_seconds, retention.minutes, arguments.max_size)
    data: str | None = arguments.data
    from_environment = os.environ.get("PENSTOCK_ALLOW_HOSTS", "").replace(",", " ").split()
    return Settings(
        host=arguments.host.strip("[]"),
        port=arguments.port,
        store=arguments.store,
        bus=arguments.bus,
        data=None if data == ":memory:" else Path(data) if data else discovery.state_home(),
        token_file=arguments.token_file or default_token_file(),
        read_only=arguments.read_only,
        public_url=arguments.public_url.rstrip("/"),
        root_path=f"/{root_path.strip('/')}" if root_path.strip("/") else "",
        allow_hosts=(*arguments.allow_host, *from_environment),
        frame_ancestors=tuple(arguments.frame_ancestor),
        exit_when_idle=arguments.exit_when_idle,
        announce=not arguments.no_discovery,
        log_level=arguments.log_level,
        retention=retention,
        alerts=AlertSettings(arguments.alerts, tuple(arguments.alert_webhook), tuple(arguments.alert_command)),
    )


def _serve(settings: Settings, keyring: Keyring, listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    limits = settings.limits.within(_raise_descriptor_limit())
    settings = msgspec.structs.replace(settings, port=port, limits=limits)
    try:
        backend = Backend(settings, open_bus(settings, keyring.key))
    except Unavailable as error:
        return _fail(str(error))
    links = Links(backend.store, keyring)
    server = make_server(create_app(settings, keyring, backend, links), settings)
    backend.on_idle = server.stop
    local = keyring.local
    url = _local_url(settings.host, port)
    if settings.announce:
        framed = bool(settings.frame_ancestors)
        discovery.write(discovery.Discovery(url, local.token, os.getpid(), time.time(), framed))
    try:
        if not is_loopback(settings.host):
            _warn_about_network(settings)
        if backend.store.warning:
            print(f"Warning: {backend.store.warning}", file=sys.stderr)
        link = fragment(links.make_first(local, DAY))
        print(f"Penstock is at {settings.public_url or url}/{link}", flush=True)
        server.run(sockets=[listener])
    finally:
        if settings.announce:
            discovery.remove(os.getpid())
    return 0


def _already_running() -> int:
    """The lock is held: say where the other one is, which may be starting at this moment."""
    for _ in range(50):
        found = discovery.read()
        if found is not None:
            print(
                f"Penstock runs already (process {found.pid}): {found.url}/ (`penstock open` signs a browser in)",
                flush=True,
            )
            return 0
        time.sleep(0.1)
    return _fail("another dashboard of this user is starting or ending; try again, or use --no-discovery")


def _lock_path() -> Path:
    return discovery.discovery_path().with_suffix(".lock")


def _hold(held: contextlib.ExitStack, path: Path) -> bool | None:
    """Whether this process has the lock from now on; None if there is no place for it. The kernel gives it back
    however the process ends.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = held.enter_context(path.open("a"))
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _local_url(host: str, port: int) -> str:
    """The address for programs on this machine."""
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _warn_about_network(settings: Settings) -> None:
    print(
        f"Listening on {settings.host}: everybody who can reach this machine can reach the dashboard. "
        "They need a token, but the connection is not encrypted; put a TLS proxy in front "
        "(--public-url https://…), or use `ssh -L` and keep 127.0.0.1.",
        file=sys.stderr,
    )


def _raise_descriptor_limit() -> int:
    """Every connection is a descriptor; the usual soft limit of 1024 would be the first to be reached. Returns how many
    there may be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16384 if hard == resource.RLIM_INFINITY else min(16384, hard)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 16384 if soft == resource.RLIM_INFINITY else soft


def _retention(text: str) -> Retention:
    times = [_duration(part) for part in text.split(",")]
    if len(times) == 1:
        return Retention(minutes=times[0])
    if len(times) == 3 and times == sorted(times):
        return Retention(times[0], times[1], times[2])
    raise argparse.ArgumentTypeError("one duration, or three that grow, for example 1h,1d,30d")


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"“{text}” is not a duration such as 90s, 30m, 1h, 1d or 2w")
    return float(found[1]) * UNITS[found[2]]


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip().upper())
    if found is None or int(found[1]) * SIZES[found[2]] < MIN_SIZE:
        raise argparse.ArgumentTypeError(f"“{text}” is not a size of at least {MIN_SIZE >> 20}M, such as 500M or 4G")
    return int(found[1]) * SIZES[found[2]]


def _url(text: str) -> str:
    if text:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise argparse.ArgumentTypeError(f"“{text}” is not an address such as https://example.org/penstock")
    return text


def _store(text: str) -> str:
    if text and not text.startswith(POSTGRES):
        raise argparse.ArgumentTypeError("it must be an address such as postgresql://user@host/database")
    return text


def _bus(text: str) -> str:
    if text and not text.startswith(REDIS):
        raise argparse.ArgumentTypeError("it must be an address such as redis://host:6379")
    return text


def _webhook(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"“{text}” is not an address such as https://example.org/hook")
    return text


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"“{text}” cannot be read: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"there is no command “{words[0] if words else ''}”")
    return text


def _rules(text: str) -> Rules:
    """Which rules hold, and from when on: `data-bound=10m,lost`."""
    if text == "none":
        return Rules(on=frozenset())
    named: dict[str, float] = {}
    on = []
    for part in text.split(","):
        name, equals, time_given = part.strip().partition("=")
        rule = next((rule for rule in RULES if rule == name), None)
        if rule is None:
            raise argparse.ArgumentTypeError(f"“{name}” is none of {', '.join(RULES)}")
        on.append(rule)
        if equals:
            if name not in ("data-bound", "stalled", "memory"):
                raise argparse.ArgumentTypeError(f"“{name}” holds at once: it takes no time")
            named[name.replace("-", "_")] = _duration(time_given)
    return Rules(on=frozenset(on), **named)


def _fail(reason: str) -> int:
    print(f"penstock dashboard: {reason}", file=sys.stderr)
    return 1
