"""When tests of the gateway cannot run."""

from __future__ import annotations

import shutil

import pytest
from fake_wikipedia import SHARED

needs_shared = pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on PATH")
