"""Loaders for tests that look at them from outside.

Recordings are what real loaders said in real trainings, message by message. `replay.py` says it again to a real
backend, with times that are now: pages and commands are tested over numbers that a real pool has written, whatever else
the machine does meanwhile. What is steered needs a loader that obeys: `stage.py` starts real trainings, each in a
process of its own, as quickly as a recording is opened.

| file | what it holds |
|---|---|
| `shapes.py` | what a training is like; the situations there are recordings of |
| `training.py` | a training of such a shape, with a real loader |
| `stage.py` | starts trainings in processes forked from one that has torch loaded |
| `recording.py`, `*.recording` | what a loader said, in a file |
| `record.py` | `python -m tests.recorded.record`: makes the recordings anew, after a change of the protocol, say |
| `loads.py`, `loads/` | what replay starts from, of real trainings, and what other numbers of workers then brought |
| `replay.py` | says it again; `python -m tests.recorded.replay URL TOKEN` shows all of them |
"""
