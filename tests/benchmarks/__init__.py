"""How fast Penstock is beside torch and its peers: `python -m tests.benchmarks`."""
