"""How long single samples took: counts of their times, and which sample of a batch took longest."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import MutableSequence, Sequence
from itertools import count
from operator import itemgetter, sub

from .fetching import Fetcher

COST_BUCKETS = 256
"""Counts of sample times, eight an octave, up to 18 minutes."""

_LEAST, _MOST = 1 << 8, 1 << 40

Counts = MutableSequence[int] | memoryview
"""As many as there are buckets; a memoryview on the board, say."""

Slow = tuple[int, int, "list[tuple[int, int, int]] | None"]
"""Place in its batch of the slowest sample (-1: not known) and its ns; the same of as many as are recorded, and when
each was there, ns of the monotonic clock."""

UNTIMED: Slow = (-1, 0, None)
"""Of a batch whose samples were too cheap to be timed, or that has none."""


def count_costs(counts: Counts, durations: Sequence[int], samples: int = 1) -> None:
    """Count the times of so many samples each, ns: eight buckets an octave, from 256 ns to 18 minutes."""
    try:
        buckets = Counter(map(_SHORT.__getitem__, durations))
    except IndexError:
        buckets = Counter(map(_bucket, durations))
    for bucket, times in buckets.items():
        counts[bucket] += times * samples


def _bucket(duration: int) -> int:
    if _LEAST <= duration < _MOST:
        shift = duration.bit_length() - 4
        return 8 * shift - 48 + (duration >> shift)
    return 0 if duration < _LEAST else COST_BUCKETS - 1


_SHORT = bytes(map(_bucket, range(1 << 15)))
"""The buckets of short times, looked up: the shorter samples are, the more of them there are to count."""


def cost_of_bucket(bucket: int) -> int:
    """What stands for a bucket, ns: as far from its lower end as from its upper one, in per cent, and that is 6."""
    octave, eighth = divmod(bucket, 8)
    low, high = (8 + eighth) << (octave + 5), (9 + eighth) << (octave + 5)
    return 2 * low * high // (low + high)


def count_batch(fetcher: Fetcher, counts: Counts, record: int) -> Slow:
    """Count the sample times of the batch that was fetched last; say which took longest."""
    stamps = fetcher.stamps
    if not stamps:
        return -1, fetcher.surprise, None
    if fetcher.together:
        mean = (stamps[-1] - fetcher.began) // fetcher.together
        count_costs(counts, (mean,), fetcher.together)
        return -1, mean, None
    durations = list(map(sub, stamps, [fetcher.began, *stamps[:-1]]))
    count_costs(counts, durations)
    longest = max(durations)
    slow = heapq.nlargest(record, zip(count(), durations, stamps), key=itemgetter(1)) if record else None
    return durations.index(longest), longest, slow
