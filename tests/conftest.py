"""What tests of several packages need."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def test_accelerator() -> None:
    """`tests.accelerator.install()` works in the processes that the test starts."""
    from tests.accelerator import CannotBuildError, library

    try:
        library()
    except CannotBuildError as error:
        pytest.skip(str(error))
