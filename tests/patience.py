"""How long tests wait for what must come. Nothing is measured with it: it only ends a test that would wait for ever."""

from __future__ import annotations

PATIENCE = 120.0
"""Seconds. A machine that runs other things beside may take long; every test's own time limit is longer still."""
