"""Penstock's dashboard: the service that collects what loaders report, and its clients for the terminal."""

import penstock

if "DataLoader" not in dir(penstock):
    raise ImportError(
        f"{penstock.__file__} is found under the name penstock before the installed package: "
        "rename it, or remove its folder from sys.path."
    )
