"""Samplers with torch's names, arguments and order, whose position can be saved and resumed.

| file | what it holds |
|---|---|
| `sequential.py` | SequentialSampler |
| `shuffling.py` | RandomSampler, SubsetRandomSampler |
| `permutation.py` | the keyed permutation behind `RandomSampler(constant_memory=True)` |
| `weighting.py` | WeightedRandomSampler |
| `distributing.py` | DistributedSampler |
| `batching.py` | BatchSampler |
| `passes.py` | one pass over a sampler: its indices, position and state |
| `origins.py` | where in a random stream a pass begins |
| `tracking.py` | `track` and `resume` for any sampler, torch's and the user's own included |
"""

from torch.utils.data import Sampler

from ..sampling.batching import BatchIterator, BatchSampler
from ..sampling.distributing import DistributedSampler
from ..sampling.passes import IndexIterator, State, TrackedIterator, length_of
from ..sampling.permutation import KeyedPermutation
from ..sampling.sequential import SequentialSampler
from ..sampling.shuffling import RandomSampler, SubsetRandomSampler
from ..sampling.tracking import check_state, kind_of, resume, told_length, track
from ..sampling.weighting import WeightedRandomSampler

__all__ = [
    "BatchIterator",
    "BatchSampler",
    "DistributedSampler",
    "IndexIterator",
    "KeyedPermutation",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "State",
    "SubsetRandomSampler",
    "TrackedIterator",
    "WeightedRandomSampler",
    "check_state",
    "kind_of",
    "length_of",
    "resume",
    "told_length",
    "track",
]
