"""Exact match as others published it, with where each number stands: ours are never printed alone.

Every row here is EM on the sets of `scout_eval.benchmarks`, with the 2018 Wikipedia (wiki-18, 21 million
passages of 100 words), the E5 retriever and three passages a search, unless its note says otherwise.
``read`` says whether the number was read where it was published, or where somebody else quotes it.
"""

from __future__ import annotations

from typing import NamedTuple

from scout_eval.benchmarks import NAMES


class Published(NamedTuple):
    """One row of a published table. ``scores`` has a benchmark's EM in [0, 1]."""

    method: str
    scores: dict[str, float]
    average: float  # over the seven sets; as the source gives it, or ours where the note says so
    source: str
    read: str  # "first-hand", or "second-hand" and where
    note: str = ""


def _row(*values: float) -> dict[str, float]:
    """Scores in the order of `NAMES`."""
    return dict(zip(NAMES, values, strict=True))


PUBLISHED = (
    Published(
        "Search-R1, Qwen2.5-7B base, PPO",
        _row(0.480, 0.638, 0.457, 0.433, 0.382, 0.196, 0.432),
        0.431,
        "arXiv:2503.09516, table 2",
        "second-hand: the same digits in table 5 of arXiv:2509.01055",
    ),
    Published(
        "Search-R1, Qwen2.5-7B instruct, GRPO",
        _row(0.429, 0.623, 0.427, 0.386, 0.346, 0.162, 0.400),
        0.396,
        "arXiv:2503.09516, table 3",
        "second-hand: the same digits in the tables of later papers that compare with it",
    ),
    Published(
        "verl-tool, its README, 200 steps",
        _row(0.462, 0.619, 0.476, 0.401, 0.401, 0.151, 0.360),
        0.410,
        "TIGER-AI-Lab/verl-tool, examples/train/search_r1/README.md",
        "first-hand",
        "the README does not name the model; the average is ours",
    ),
    Published(
        "verl-tool, Qwen2.5-7B base, GRPO",
        _row(0.493, 0.662, 0.502, 0.448, 0.453, 0.193, 0.464),
        0.459,
        "arXiv:2509.01055, table 5 (VT-Search-zero)",
        "first-hand",
    ),
    Published(
        "GiGPO, Qwen2.5-7B instruct",
        _row(0.464, 0.647, 0.461, 0.416, 0.436, 0.189, 0.689),
        0.472,
        "arXiv:2505.10978",
        "second-hand: the main table of arXiv:2510.14967 (IGPO)",
    ),
    Published(
        "Tree-GRPO, Qwen2.5-14B",
        _row(0.517, 0.681, 0.473, 0.502, 0.505, 0.259, 0.544),
        0.497,
        "arXiv:2509.21240, table 1",
        "first-hand",
        "the paper averages one hop (0.557) and several (0.453); the average of the seven is ours",
    ),
)
