"""What rollouts ask of a tool server: groups on one question, a few turns each, pauses between them.

And the two loads of the measurements: a closed loop, and a fixed rate.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. ``think_s`` is what the policy needs before it."""

    think_s: float
    action: str


@dataclass(frozen=True, slots=True)
class Mix:
    """The shape of the load.

    Attributes:
        group: rollouts on one question (GRPO's G).
        turns: fewest and most searches of a rollout; an answer follows.
        think_s: mean time between turns, exponentially distributed; 0 asks again at once.
        repeat: chance that a rollout searches what the others of its group search in that turn.
    """

    group: int = 8
    turns: tuple[int, int] = (2, 4)
    think_s: float = 1.0
    repeat: float = 0.6


def plan(questions: Sequence[str], n_rollouts: int, mix: Mix, seed: int = 0) -> list[list[Turn]]:
    """The turns of every rollout, in the order of their groups; the same seed gives the same plan."""
    rng = random.Random(seed)
    order = list(range(len(questions)))
    rng.shuffle(order)
    rollouts = []
    for number in range(n_rollouts):
        question = questions[order[number // mix.group % len(order)]]
        if number % mix.group == 0:
            usual = [_query(question, turn, rng) for turn in range(mix.turns[1])]
        turns = []
        for turn in range(rng.randint(*mix.turns)):
            query = usual[turn] if rng.random() < mix.repeat else _query(question, turn, rng)
            action = f"<think>{_thought(rng)}</think>\n<search>{query}</search>"
            turns.append(Turn(_think(rng, mix.think_s), action))
        turns.append(Turn(_think(rng, mix.think_s), "<think>That is enough.</think>\n<answer>yes</answer>"))
        rollouts.append(turns)
    return rollouts


def closed_loop(actions: Sequence[str], clients: int) -> list[list[Turn]]:
    """``clients`` rollouts that ask one after the other without a pause."""
    return [[Turn(0.0, action) for action in actions[i::clients]] for i in range(clients)]


def at_rate(actions: Sequence[str], per_second: float) -> list[list[Turn]]:
    """Each action at its time, whatever the answers do: a rollout of its own that waits and asks once."""
    return [[Turn(i / per_second, action)] for i, action in enumerate(actions)]


def _query(question: str, turn: int, rng: random.Random) -> str:
    """The question itself at first, then parts of it, as policies do."""
    words = question.rstrip("?").split()
    if turn == 0 and rng.random() < 0.5:
        return question
    length = rng.randint(2, max(2, min(8, len(words))))
    start = rng.randint(0, max(0, len(words) - length))
    return " ".join(words[start : start + length])


def _thought(rng: random.Random) -> str:
    return "I need to find out who that was. " * rng.randint(5, 40)


def _think(rng: random.Random, mean_s: float) -> float:
    return rng.expovariate(1.0 / mean_s) if mean_s > 0 else 0.0
