"""Profiles: which lines of the dataset the workers' time goes to. Nothing here imports torch."""
