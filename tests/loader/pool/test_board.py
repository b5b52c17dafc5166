"""The board: rows that two processes share, and what a worker notes on its own."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.costs import COST_BUCKETS, cost_of_bucket, count_costs
from penstock.pool.crews.board import (
    COLLATING,
    FETCHING,
    IDLE,
    ROW,
    SENDING,
    Board,
    Recorder,
    Word,
    size_of_board,
)
from penstock.pool.memory import create_segment


@pytest.fixture
def board() -> Board:
    descriptor = create_segment(size_of_board(4))
    made = Board(descriptor, 4)
    os.close(descriptor)
    return made


def test_rows_are_apart_and_shared_with_forked_processes(board: Board) -> None:
    if not (child := os.fork()):
        for number in range(4):
            board.row(number)[Word.BATCHES] = 10 + number
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [board.row(number)[Word.BATCHES] for number in range(4)] == [10, 11, 12, 13]
    assert sum(board.words) == 46


def test_clearing_a_row_keeps_its_control_words_and_its_neighbours(board: Board) -> None:
    for word in range(4 * ROW):
        board.words[word] = 5
    board.clear(1)
    row = board.row(1).tolist()
    assert row[Word.CONTROL] == row[Word.EPOCH] == 5
    assert row[Word.BATCH] == -1
    assert set(row[Word.BATCH + 1 :]) == {0}
    assert set(board.row(0).tolist()) == set(board.row(2).tolist()) == {5}


def test_a_batch_on_its_way_through_a_worker(board: Board) -> None:
    row = board.row(2)
    recorder = Recorder(row)
    recorder.idle()
    assert row[Word.STATE] == IDLE
    recorder.start(7)
    assert (row[Word.STATE], row[Word.BATCH], row[Word.STARTED]) == (FETCHING, 7, 1)
    recorder.fetch_done()
    assert row[Word.STATE] == COLLATING
    recorder.collate_done()
    assert row[Word.STATE] == SENDING
    sent = recorder.encode_done(samples=8, nbytes=4096)
    assert (row[Word.BATCHES], row[Word.SAMPLES], row[Word.BYTES]) == (1, 8, 4096)
    assert recorder.started <= recorder.fetched <= recorder.collated <= sent
    recorder.idle()
    assert row[Word.FETCH] == recorder.fetched - recorder.started
    assert row[Word.COLLATE] == recorder.collated - recorder.fetched
    assert row[Word.SEND] > 0


def test_all_of_a_workers_time_is_accounted_for(board: Board) -> None:
    row = board.row(0)
    recorder = Recorder(row)
    begun = recorder._last
    for batch in range(20):
        if batch % 3 == 0:
            recorder.idle()
        if batch % 7 == 0:
            recorder.paused()
        recorder.start(batch)
        recorder.fetch_done()
        recorder.collate_done()
        recorder.encode_done(1, 1)
    recorder.idle()
    assert sum(row[word] for word in (Word.FETCH, Word.COLLATE, Word.SEND, Word.IDLE)) == recorder._last - begun


def counted(*durations: int) -> list[int]:
    counts = [0] * COST_BUCKETS
    count_costs(counts, durations)
    return counts


@given(st.one_of(st.integers(0, 10**13), st.integers(0, 1000)))
def test_cost_buckets_are_an_eighth_of_an_octave_wide(nanoseconds: int) -> None:
    bucket, following = (counted(each).index(1) for each in (nanoseconds, nanoseconds + 1))
    assert following in (bucket, bucket + 1)
    if 256 <= nanoseconds < 10**11:
        assert abs(cost_of_bucket(bucket) - nanoseconds) <= nanoseconds * 0.059


def test_costs_are_counted(board: Board) -> None:
    recorder = Recorder(board.row(1))
    count_costs(recorder.costs, [1000, 1001, 10**9])
    assert sum(board.row(1)[Word.COST :].tolist()) == 3
