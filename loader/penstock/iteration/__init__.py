"""What `iter(loader)` returns: one iterator for loading inline, one for loading through a pool."""
