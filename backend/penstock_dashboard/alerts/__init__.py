"""Alerts: what somebody should look at, and who is told. `rules` (pure) says of one loader what holds, `book` (pure)
from when to when, `senders` tell the world, and `lookout` looks at every loader.
"""
