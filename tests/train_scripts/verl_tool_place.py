"""Where verl-tool and its environment are, for the tests that need them; both may be absent."""

from __future__ import annotations

import pytest

from scout_protocol.errors import UserError
from scout_train.verl_tool import paths


def reason(environment: bool) -> str:
    """Why such a test cannot run here; empty if it can."""
    try:
        paths.checkout()
        if environment:
            paths.python()
    except UserError as error:
        return str(error)
    return ""


needs_code = pytest.mark.skipif(bool(reason(False)), reason=reason(False) or "there")
needs_engine = pytest.mark.skipif(bool(reason(True)), reason=reason(True) or "there")
