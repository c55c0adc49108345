"""Settings for all rooms' tests."""

from __future__ import annotations

from hypothesis import settings

# A deadline per example measures the machine, not the code: helpers and CI share their cores.
settings.register_profile("scout", deadline=None)
settings.load_profile("scout")
