"""Penstock in programs that do not know of it: torch's DataLoader replaced, here and in all child processes."""
