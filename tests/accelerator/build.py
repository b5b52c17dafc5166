"""`python -m tests.accelerator.build FOLDER`: in a process of its own, because torch loads what it has built."""

from __future__ import annotations

import sys

from torch.utils.cpp_extension import load

from tests.accelerator import SOURCE

if __name__ == "__main__":
    load("accelerator", [str(SOURCE)], build_directory=sys.argv[1], is_python_module=False, verbose=True)
