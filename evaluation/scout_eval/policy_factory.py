"""Policies by name, from `scout_agent.factory`, and what makes two runs of one comparable."""

from __future__ import annotations

from scout_agent.factory import FORMS, PolicyOptions, check_spec, open_policy
from scout_eval.provenance import model_fingerprint

__all__ = ["FORMS", "PolicyOptions", "check_spec", "fingerprint", "open_policy"]


def fingerprint(spec: str) -> str:
    """What makes two runs of this policy comparable: the name, and the weights where they are local."""
    kind, argument = check_spec(spec)
    return f"{spec}#{model_fingerprint(argument)[:16]}" if kind == "hf" else spec
