"""Agents: processes on other machines that make batches there. `service` listens, `session` serves one pool."""
