"""The engine: a zygote that forks workers, slots that carry batches, and the conductor that keeps order."""
