"""The right number of workers, found while training runs: see `tuner.py` for the method."""
