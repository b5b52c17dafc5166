"""`penstock resize`, `penstock pause`, `penstock resume`, …: every kind of order, for scripts and people in a hurry."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
from penstock.insight.commands import OVER, sentence
from penstock.protocol import ORDERS, Auto, CommandRecord, Order, Pause, Resize, ShowStack, TakeProfile

from ..terminal import options, profiles, stacks, targets
from ..terminal.client import Client, Ordered, Refusal
from ..terminal.options import FINE, REFUSED, TARGETS, Failure
from ..terminal.targets import Target

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]

POLL = 0.05
"""Seconds between two looks at a command that is under way."""


def _seconds(text: str) -> float | None:
    return None if text == "none" else float(text)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"on or off, not {text!r}")
    return text == "on"


ARGUMENTS: dict[type[Order], list[tuple[str, dict[str, Any]]]] = {
    Resize: [("workers", {"type": int, "metavar": "N", "help": "the number of workers there shall be"})],
    Auto: [("on", {"type": _switch, "metavar": "on|off", "help": "whether the tuner chooses the number of workers"})],
    Pause: [
        (
            "--resume-after",
            {"type": float, "metavar": "SECONDS", "help": "resume by itself after so long (at most a day)"},
        )
    ],
    ShowStack: [
        (
            "worker",
            {
                "type": int,
                "nargs": "?",
                "metavar": "WORKER",
                "help": "its number (default: all workers; -1: the thread of training)",
            },
        )
    ],
    TakeProfile: [
        (
            "--seconds",
            {
                "type": _seconds,
                "default": 10.0,
                "metavar": "SECONDS",
                "help": "for how long (10; none: until 0 is asked for)",
            },
        ),
        (
            "--rate",
            {"type": float, "default": 50.0, "metavar": "HZ", "help": "looks a second at each worker (50)"},
        ),
        (
            "-o/--output",
            {"metavar": "FILE", "help": "save it as *.speedscope.json, *.pb.gz (pprof) or *.folded (flame graphs)"},
        ),
    ],
}
"""Kind of order → what is said besides the target: each is called like a field of the order, but for `--output`."""


def add_parser(subparsers: Subparsers) -> None:
    for action, kind in ORDERS.items():
        about = (kind.__doc__ or "").partition("\n")[0]
        parser = subparsers.add_parser(action, help=about[0].lower() + about[1:-1], description=f"{about}\n\n{TARGETS}")
        options.add_options(parser)
        parser.add_argument("target", type=targets.parse, metavar="TARGET", help="RUN, RUN/LOADER or RUN/RANK/LOADER")
        for name, how in ARGUMENTS.get(kind, ()):
            parser.add_argument(*name.split("/"), **how)
        parser.add_argument(
            "--wait",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="wait for the outcome. What holds only from the next epoch on (iterable-style datasets) is not "
            "waited for: it is told as pending",
        )
        parser.add_argument("--json", action="store_true", help="print the commands as the API has them")
        parser.set_defaults(run=options.guarded(action, _run), action=action)


def _run(arguments: argparse.Namespace) -> int:
    client = Client(options.address_of(arguments))
    target: Target = arguments.target
    kind = ORDERS[arguments.action]
    order = kind(**{name: getattr(arguments, name) for name in kind.__struct_fields__})
    profiles.check_output(getattr(arguments, "output", None))
    try:
        ordered = client.order(target, order)
    except Refusal as refusal:
        raise _explained(client, target, refusal) from None
    over: list[CommandRecord] = []
    for command in ordered.commands:
        last = _wait(client, command) if arguments.wait else command
        over.append(last)
        if not arguments.json:
            print(f"{last.loader}: {sentence(last)}", flush=True)
    if arguments.json:
        print(msgspec.json.encode(Ordered(over, ordered.refused)).decode())
    else:
        for refused in ordered.refused:
            print(f"penstock {arguments.action}: {refused.reason}", file=sys.stderr)
    if isinstance(order, TakeProfile) and order.seconds and arguments.wait:
        _show_profiles(client, over, order.seconds, arguments)
    if isinstance(order, ShowStack) and arguments.wait and not arguments.json:
        for command in over:
            if command.state == "applied":
                print(stacks.wait_for(client, command), flush=True)
    failed = any(command.state in OVER and command.state != "applied" for command in over)
    return REFUSED if failed or _missed(client, ordered) else FINE


def _show_profiles(client: Client, over: list[CommandRecord], seconds: float, arguments: argparse.Namespace) -> None:
    begun = [command for command in over if command.state == "applied"]
    for command in begun:
        profile = profiles.wait_for(client, command, seconds)
        if not arguments.json:
            print(f"{command.loader}: {profile}", flush=True)
        if arguments.output is not None:
            profile.save(profiles.output_for(arguments.output, command.loader, len(begun) > 1))


def _wait(client: Client, command: CommandRecord) -> CommandRecord:
    """The backend sets the limit: it calls a command timed out that nobody answers."""
    while command.state not in OVER and command.state != "pending":
        time.sleep(POLL)
        try:
            command = client.command(command.id)
        except Failure as failure:
            why = f"{command.loader}: asked for, but what came of it is not known: {failure}"
            raise Failure(failure.status, why) from None
    return command


def _missed(client: Client, ordered: Ordered) -> bool:
    """Whether a loader refused that is still there. That finished ones take no commands surprises nobody."""
    if not ordered.refused:
        return False
    try:
        gone = {row.id for row in client.loaders() if row.presence in ("finished", "lost")}
    except Refusal:  # a token that may control but not view
        gone = set()
    return any(refused.loader not in gone for refused in ordered.refused)


def _explained(client: Client, target: Target, refusal: Refusal) -> Failure:
    """For an unknown name: which ones there are, if this token may see them."""
    if refusal.code != 404:
        return refusal
    try:
        return Failure(REFUSED, targets.not_found(target, client.loaders()))
    except Failure:
        return refusal
