"""The kinds of workers that a pool can have. `crew.py` is the seam; a kind is one file beside it."""
