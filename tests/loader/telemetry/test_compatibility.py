"""A newer backend accepts an older loader and the other way round, within one major version."""

from __future__ import annotations

import types
from typing import Any, Literal, get_args

import msgspec
import pytest
from penstock import protocol
from penstock.protocol import (
    Ack,
    Command,
    Config,
    EpochEvent,
    Event,
    Events,
    Goodbye,
    Hello,
    Identity,
    Outcome,
    Published,
    Refused,
    Snapshot,
    Span,
    Spans,
    Stall,
    ToBackend,
    ToLoader,
    Welcome,
    Worker,
    WorkerEvent,
)
from penstock.telemetry.commands import BadCommand
from penstock.telemetry.commands import decode as decode_in_loader
from penstock_dashboard.decoding import decode as decode_in_backend

EVENTS: list[Any] = [
    Spans(1.0, 1.0, [Span(0, 0, 1, 2, 3, 4, 5, 6)]),
    Stall(1.0, 5, 2, 0, 7),
    protocol.StackEvent(1.0, 3, 77, "File"),
    WorkerEvent(1.0, "born", 0, 1),
    EpochEvent(1.0, "started", 0),
    protocol.CommandEvent(1.0, "resize", "applied"),
    protocol.ProfilePart(
        1.0,
        "p",
        0,
        functions=[protocol.ProfileFunction("f", "data.py", 1, True)],
        nodes=[0, 0, 2],
        weights=[protocol.ProfileWeights(0, "fetch", [1], [20], [10])],
    ),
    protocol.TuningEvent(1.0, "try", 4, 2, "training waits", 12.5, 7.0),
    protocol.Receipt(1.0, 2, 4, 9.5, 0.01, 100),
    protocol.Note(1.0, "lr drop", 2, 40),
    protocol.ErrorEvent(1.0, "dataset", "ValueError"),
    protocol.QuarantineEvent(1.0, [protocol.Quarantined("7", "dataset", "OSError: corrupt")]),
]
UPWARDS: list[Any] = [
    Hello(protocol.PROTOCOL, Identity("run", "train"), Config(dataset="D")),
    Snapshot(3, 1.0, "running", workers=[Worker(0, 1, "idle")]),
    Events(4, EVENTS),
    Outcome("c", "applied", 1.0),
    Goodbye(5),
    protocol.Load(1.0, 2, 40, [(5, 6, 7)], [8]),
]
ORDERS: list[Any] = [
    protocol.Resize(3),
    protocol.Pause(5.0),
    protocol.Resume(),
    protocol.TakeProfile(5.0),
    protocol.Auto(True),
    protocol.ShowStack(3),
]
DOWNWARDS: list[Any] = [
    Welcome(protocol.PROTOCOL, "run:0:train", 7),
    Ack(3),
    Refused("no"),
    protocol.Pace(1_000_000),
    *(Command("c", order, "somebody") for order in ORDERS),
]


def plain(message: Any) -> Any:
    return message.flat() if isinstance(message, Command) else msgspec.to_builtins(message)


def newer(value: Any) -> Any:
    """As a later minor version would send it: all objects have one field more."""
    if isinstance(value, dict):
        known = {key: item if key == "versions" else newer(item) for key, item in value.items()}
        return {**known, "later": {"of": "a newer version"}}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [newer(item) for item in value]
    return value


def test_every_message_and_event_is_tried() -> None:
    assert {type(message) for message in UPWARDS} == set(get_args(ToBackend))
    assert {type(message) for message in DOWNWARDS} == {*get_args(ToLoader), Command}
    assert {type(order) for order in ORDERS} == set(get_args(protocol.Order))
    assert {type(event) for event in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("message", UPWARDS, ids=lambda message: type(message).__name__)
def test_fields_of_a_newer_loader_are_ignored(message: Any) -> None:
    assert decode_in_backend(msgspec.msgpack.encode(newer(plain(message)))) == message


@pytest.mark.parametrize("message", DOWNWARDS, ids=lambda message: type(message).__name__)
def test_fields_of_a_newer_backend_are_ignored(message: Any) -> None:
    assert decode_in_loader(msgspec.msgpack.encode(newer(plain(message)))) == message


def test_items_that_a_newer_loader_adds_to_arrays_are_ignored() -> None:
    raw = plain(UPWARDS[1])
    for name in ("queues", "times", "epoch_times", "stalls", "pin", "cost"):
        raw[name] = [*raw[name], "later"]
    raw["workers"] = [[*worker, "later", {"more": 1}] for worker in raw["workers"]]
    assert decode_in_backend(msgspec.msgpack.encode(raw)) == UPWARDS[1]
    raw = plain(Events(4, EVENTS[:1]))
    raw["events"][0]["spans"] = [[*span, "later"] for span in raw["events"][0]["spans"]]
    assert decode_in_backend(msgspec.msgpack.encode(raw)) == Events(4, EVENTS[:1])


def test_fields_that_an_older_side_does_not_send_have_defaults() -> None:
    """Only what version 1.0 required may be required."""
    required = {
        "hello": {"protocol", "identity"},
        "snapshot": {"seq", "at", "state"},
        "events": {"seq", "events"},
        "outcome": {"command", "state", "at"},
        "goodbye": {"seq"},
        "load": {"at"},
        "welcome": {"protocol", "loader"},
        "ack": {"seq"},
        "refused": {"reason"},
        "pace": {"interval_us"},
    }
    for message in (*get_args(ToBackend), *get_args(ToLoader)):
        info = msgspec.structs.fields(message)
        assert {field.encode_name for field in info if field.required} == required[message.__struct_config__.tag]
    short = {"type": "snapshot", "seq": 1, "at": 1.0, "state": "running", "queues": [3], "workers": [[0, 9, "idle"]]}
    decoded = decode_in_backend(msgspec.msgpack.encode(short))
    assert isinstance(decoded, Snapshot)
    assert decoded.queues == protocol.Queues(index=3) and decoded.workers == [Worker(0, 9, "idle")]


def test_kinds_of_events_that_only_a_newer_loader_knows_are_left_out() -> None:
    """msgspec refuses a whole message over one unknown tag; the backend looks at such messages event by event."""
    raw = plain(Events(4, EVENTS))
    raw["events"].insert(2, {"kind": "eclipse", "at": 1.0, "shadow": [1, 2]})
    data = msgspec.msgpack.encode(raw)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=ToBackend)
    assert decode_in_backend(data, minor=protocol.PROTOCOL[1] + 1) == Events(4, EVENTS)


def test_messages_that_only_a_newer_side_knows_are_ignored() -> None:
    data = msgspec.msgpack.encode({"type": "eclipse", "seq": 9})
    assert decode_in_backend(data, minor=protocol.PROTOCOL[1] + 1) is None
    assert decode_in_loader(data) is None


def test_a_command_that_only_a_newer_backend_knows_is_refused_and_not_lost() -> None:
    with pytest.raises(BadCommand, match="defrost") as caught:
        decode_in_loader(msgspec.msgpack.encode({"type": "command", "id": "c1", "action": "defrost"}))
    assert caught.value.command == "c1"


class CommandOf21(msgspec.Struct, frozen=True, tag="command"):
    """As loaders of version 2.1 read a command, and backends of that version send it."""

    id: str
    action: Literal["resize", "pause", "resume"]
    workers: int | None = None
    resume_after: float | None = None
    by: str = ""


@pytest.mark.parametrize(
    ("command", "before"),
    [
        (Command("c", protocol.Resize(3), "me"), CommandOf21("c", "resize", 3, None, "me")),
        (Command("c", protocol.Pause(5.0)), CommandOf21("c", "pause", None, 5.0)),
        (Command("c", protocol.Pause()), CommandOf21("c", "pause")),
        (Command("c", protocol.Resume()), CommandOf21("c", "resume")),
    ],
)
def test_commands_are_the_same_for_version_2_1(command: Command, before: CommandOf21) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(command.flat()), type=CommandOf21) == before
    assert decode_in_loader(msgspec.msgpack.encode(before)) == command


def aged(hours: float) -> Snapshot:
    """Sixteen workers that have been at 20 batches a second of 64 images for so long."""
    us, batches = int(hours * 3600e6), int(20 * 3600 * hours)
    workers = [
        Worker(
            number, 1_234_567 + number, "fetching", 40, batches % 20_000, 3, batches // 16, batches * 4, batches * 586,
            us // 2, us // 20, us // 30, us // 3000, 900 << 20, us // 2000, us // 9000,
        )
        for number in range(16)
    ]  # fmt: skip
    return Snapshot(
        seq=batches // 4, at=1.8e9, state="running", epoch=12, batch=batches % 20_000, length=20_000, batches=batches,
        samples=batches * 64, bytes=batches * 9_600_000, target=16,
        queues=protocol.Queues(10, 300, 512, 20, 200 << 20, 0, 200, 260, 20, 3 << 30, 2 << 30, 2 << 30, "memory"),
        times=protocol.Times(us // 2, us // 4, us // 8, 0, us // 100, us // 1000),
        epoch_times=protocol.Times(us // 20, us // 40, us // 80, 0, us // 1000, us // 10_000),
        stalls=protocol.Stalls(batches // 10, us // 8),
        pin=protocol.PinStage("accelerator", batches, us * 1000, us // 9),
        cost=protocol.SampleCost(batches, 5000, 9000, 12_000, 2_000_000, "1234567"), workers=workers, digest="d" * 32,
        processors=protocol.Processors(7.5, us // 1000, us // 1500),
        glances=protocol.Glances(*[int(hours * 14_400 * each) for each in (1, 0.5, 8, 2, 3, 1)]),
    )  # fmt: skip


def size(snapshot: Snapshot) -> int:
    """Bytes on the way, with the head of a websocket frame."""
    return len(msgspec.msgpack.encode(Published.of(snapshot))) + 8


@pytest.mark.parametrize(("hours", "most"), [(0.01, 1420), (1, 1610), (12, 1700), (168, 1940)])
def test_a_snapshot_of_16_workers_is_small(hours: float, most: int) -> None:
    """Below 2 KB for a week of the same processes."""
    assert size(aged(hours)) <= most


@pytest.mark.parametrize(("hours", "most"), [(0.01, 1520), (12, 1810), (24, 1910), (168, 2048)])
def test_a_snapshot_of_16_workers_on_two_other_machines_is_small(hours: float, most: int) -> None:
    """The same, though some were lost on the way."""
    sums = int(hours * 3600e5), int(hours * 4e5), 1500, 12
    machines = [protocol.Machine(f"trainer-node-{n}", [*range(8 * n, 8 * n + 8)], 64, *sums) for n in (0, 1)]
    assert size(msgspec.structs.replace(aged(hours), machines=machines, recoveries=24)) <= most


@pytest.mark.parametrize("snapshot", [Snapshot(3, 1.0, "idle"), aged(1)], ids=["fresh", "aged"])
def test_what_is_not_sent_is_put_back(snapshot: Snapshot) -> None:
    sent = msgspec.msgpack.encode(Published.of(snapshot))
    left_out = msgspec.to_builtins(snapshot).keys() - msgspec.msgpack.decode(sent).keys()
    assert {"pending", "slowest", "quarantined", "tuned"} <= left_out
    read = decode_in_backend(sent)
    assert type(read) is Snapshot and read == snapshot


# -- JSON Schema --------------------------------------------------------------------------------------------


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values())) if value else own
    return set().union(*map(references, value)) if isinstance(value, list) and value else set()


def test_the_schema_is_complete_and_describes_what_is_sent() -> None:
    schema = protocol.to_json_schema()
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    assert {reference.removeprefix("#/$defs/") for reference in references(schema)} <= set(definitions)
    for union in (ToBackend, ToLoader, protocol.Order, protocol.ToViewer, protocol.FromViewer, Event):
        assert isinstance(union, types.UnionType)
        for message in get_args(union):
            assert definitions[message.__name__]["title"] == message.__name__
    for message in (*UPWARDS, *(each for each in DOWNWARDS if not isinstance(each, Command))):
        definition = definitions[type(message).__name__]
        sent = msgspec.to_builtins(message)
        left_out = {field.name for field in msgspec.structs.fields(message) if field.default is msgspec.UNSET}
        assert set(sent) == set(definition["properties"]) - left_out
        assert set(definition["required"]) <= set(sent)
        assert definition["properties"]["type"] == {"enum": [sent["type"]]}
        assert definition.get("additionalProperties", True) is not False  # a reader must let newer fields pass
