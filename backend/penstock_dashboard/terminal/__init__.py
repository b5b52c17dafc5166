"""Penstock in the terminal: `penstock top`, and `status`, `resize`, `pause`, `resume` for scripts."""
