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
| `tracking.py` | `track` and `resume` for any sampler, the user's own included |
| `standard.py` | the same for torch's own, by counterparts of ours; whether an order is fixed |
| `foreseeing.py` | what the next pass will give, found out without drawing from anybody's generator |
"""

from torch.utils.data import Sampler

from .batching import BatchIterator, BatchSampler
from .distributing import DistributedSampler
from .passes import IndexIterator, State, TrackedIterator, length_of
from .permutation import KeyedPermutation
from .sequential import SequentialSampler
from .shuffling import RandomSampler, SubsetRandomSampler
from .standard import check_state, counterpart, covers, is_fixed, kind_of, length_before_end, resume, track
from .tracking import load_own_states, own_states, told_length
from .weighting import WeightedRandomSampler

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
    "counterpart",
    "covers",
    "is_fixed",
    "kind_of",
    "length_before_end",
    "length_of",
    "load_own_states",
    "own_states",
    "resume",
    "told_length",
    "track",
]
