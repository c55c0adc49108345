"""Why a run ends on purpose."""

from __future__ import annotations


class UnfilledStepError(RuntimeError):
    """A step cannot be filled; the weights of the step before are whole and are saved before the run ends."""
