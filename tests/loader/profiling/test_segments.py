"""Whose the time was before a stop: of the function that was left since, of its caller, of both in turns."""

from __future__ import annotations

import dis
from collections import Counter
from types import CodeType

from penstock.profiling.segments import Place, Segments


def small(value: int) -> int:
    value = (value * 31 + 7) & 0xFFFF
    return value ^ (value >> 3)


def wrapping(value: int) -> int:
    return small(value)


def calling(value: int) -> int:
    for _ in range(10):
        value = small(value)
    return value


def calling_both(value: int) -> int:
    for _ in range(10):
        value = wrapping(value)
        value = small(value)
    return value


def calling_c(value: int) -> int:
    for _ in range(10):
        value = small(value)
        abs(value)
    return value


def where(code: CodeType, *names: str) -> list[Place]:
    """The places of instructions with these names; of calls the end, where a frame stands that has called."""
    instructions = list(dis.get_instructions(code))
    ends = [each.offset for each in instructions[1:]] + [len(code.co_code)]
    return [(code, end - 2) for each, end in zip(instructions, ends, strict=True) if each.opname in names]


def calls(code: CodeType) -> list[Place]:
    """Without that of `range`, which is C code."""
    return where(code, "CALL")[1:]


def end_of_loop(code: CodeType) -> Place:
    return where(code, "JUMP_BACKWARD")[0]


def charged(segments: Segments, place: Place, looks: int = 1000) -> Counter[tuple[str, ...]]:
    return Counter(tuple(code.co_name for code, _ in segments.charged(place)) for _ in range(looks))


def test_a_function_without_loop_or_call_is_charged_for_its_instructions() -> None:
    segments, code = Segments(), calling.__code__
    [call] = calls(code)
    assert charged(segments, end_of_loop(code)) == {("calling",): 1000}, "nothing is known of what is called there"
    segments.learn(call, small.__code__)
    found = charged(segments, end_of_loop(code))
    assert {*found} == {("calling",), ("calling", "small")}
    assert 700 < found["calling", "small"] < 950, "about ten of its twelve instructions that do something"


def test_the_last_call_of_a_function_is_followed_into_the_function_that_it_calls() -> None:
    segments, code = Segments(), calling_both.__code__
    first, second = calls(code)
    [inner] = where(wrapping.__code__, "CALL")
    segments.learn(first, wrapping.__code__)
    segments.learn(inner, small.__code__)
    found = charged(segments, second)
    assert {*found} == {("calling_both",), ("calling_both", "wrapping"), ("calling_both", "wrapping", "small")}
    assert found.most_common(1)[0][0] == ("calling_both", "wrapping", "small")
    assert charged(segments, end_of_loop(code)) == {("calling_both",): 1000}, "the second call is not known yet"


def test_c_code_ends_a_stretch() -> None:
    segments, code = Segments(), calling_c.__code__
    segments.learn(calls(code)[0], small.__code__)
    assert charged(segments, end_of_loop(code)) == {("calling_c",): 1000}


def test_what_a_call_calls_may_change() -> None:
    segments, code = Segments(), calling.__code__
    [call] = calls(code)
    for callee in (small, wrapping, small):
        segments.learn(call, callee.__code__)
        assert ("calling", callee.__name__) in charged(segments, end_of_loop(code))


def test_where_a_function_begins_and_where_a_loop_ends() -> None:
    segments, code = Segments(), calling.__code__
    [resume] = where(code, "RESUME")
    assert segments.begins(resume) and not segments.loops(resume)
    assert segments.loops(end_of_loop(code)) and not segments.begins(end_of_loop(code))
    assert not segments.begins(calls(code)[0]) and not segments.loops(calls(code)[0])


def recursive(value: int) -> int:
    return recursive(value - 1)


def test_a_function_that_calls_itself_last_has_an_end() -> None:
    segments = Segments()
    [call] = where(recursive.__code__, "CALL")
    segments.learn(call, recursive.__code__)
    [stop] = where(recursive.__code__, "RETURN_VALUE")
    assert max(map(len, charged(segments, stop))) < 10
