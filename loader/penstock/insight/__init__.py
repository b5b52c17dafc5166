"""What the numbers mean, decided once: rates from counters, what limits training, and all of it in words.

Loader, backend, terminal and browser show what is worked out here. Nothing in this package imports torch.
"""
