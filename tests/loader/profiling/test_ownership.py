"""The user's own code is told from libraries by where it is."""

from __future__ import annotations

import json
import sysconfig

import pytest
import torch
from penstock.profiling import sampler
from penstock.profiling.ownership import is_users


@pytest.mark.parametrize(
    ("file", "users"),
    [
        (__file__, True),
        ("/home/me/project/data.py", True),
        ("data.py", True),
        ("<string>", True),
        ("<stdin>", True),
        ("/tmp/ipykernel_7/123.py", True),
        (json.__file__, False),
        (torch.__file__, False),
        (sampler.__file__, False),
        ("/home/me/.venv/lib/python3.11/site-packages/PIL/Image.py", False),
        (f"{sysconfig.get_paths()['stdlib']}/threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<attrs generated init Point>", False),
    ],
)
def test_whose_code_it_is(file: str, users: bool) -> None:
    assert is_users(file) is users
