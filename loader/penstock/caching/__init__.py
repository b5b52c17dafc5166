"""Samples that are made once: `penstock.cached`."""
