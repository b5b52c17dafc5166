"""A small training run that shows the loader at work: `python -m loader.demo`."""
