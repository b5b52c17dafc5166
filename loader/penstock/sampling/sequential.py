"""SequentialSampler: 0, 1, 2, …"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.utils import data

from .passes import IndexSampler, State


class SequentialSampler(IndexSampler, data.SequentialSampler):
    """All indices in their order."""

    def _signature(self) -> State:
        return {"sampler": "SequentialSampler", "length": len(self.data_source)}

    def _blocks(self, origin: State, start: int) -> Iterator[Sequence[int]]:  # noqa: ARG002
        return iter([range(start, len(self.data_source))])

    def _nearest(self, position: int) -> int:
        return position
