"""A training that shows the dashboard at work: `penstock demo`, `python -m penstock.demo`, `make demo`."""
