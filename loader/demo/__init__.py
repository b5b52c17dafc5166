"""A training that shows the dashboard at work: `penstock demo`, `python -m loader.demo`, `make demo`."""
