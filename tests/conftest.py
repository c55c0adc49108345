"""What must hold before any test module is imported."""

from __future__ import annotations

import os

from hypothesis import settings

# verl reads these when it is first imported, by whichever room's tests come first.
os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "scout_train.cpu.platform")
os.environ.setdefault("VERL_USE_EXTERNAL_PLUGINS", "none")

# A deadline per example measures the machine, not the code.
settings.register_profile("scout", deadline=None)
settings.load_profile("scout")
