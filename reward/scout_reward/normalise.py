"""Answer normalisation: the protocol's, under the name that the rules of this room use."""

from __future__ import annotations

from scout_protocol.normalise import normalise

__all__ = ["normalise"]
