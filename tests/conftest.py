"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business: a busy one would fail tests that nothing is wrong with.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")
