"""The gate at the start of every run: gold scores 1.0 and no known hack pays, or nothing starts."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from scout_protocol.dialect import DIALECTS, Dialect
from scout_protocol.errors import UserError
from scout_reward.hacks import GOLDEN, giving_up, honest, known_hacks
from scout_reward.normalise import get_normaliser
from scout_reward.reading import Reading, read_spans
from scout_reward.score import score
from scout_reward.settings import DEFAULTS, RewardSettings
from scout_reward.shaping import announce

MAX_UNWINNABLE_SHARE = 0.01


def check(
    settings: RewardSettings = DEFAULTS,
    dialects: Iterable[Dialect] = tuple(DIALECTS.values()),
    max_searches: int = 1,
) -> list[str]:
    """Score gold and the known hacks under these settings; say once what the shaping terms risk.

    The tiers are checked without shaping, to the last digit: an honest right answer is worth 1.0, and each
    hack what it should be. With shaping, and at the first and the last step of a schedule, the honest
    trajectory must still be worth more than every hack; and a right answer that took ``max_searches``, the
    most that the budget of the run allows, more than a wrong guess without any.

    Returns:
        One line per check that passed.

    Raises:
        UserError: something scores what it should not.
    """
    passed: list[str] = []
    announce(settings)
    for dialect in dialects:
        for step in sorted({0, settings.format_steps}):
            passed += _check_tiers(settings.unshaped(), dialect, step)
            _check_order(settings, dialect, step)
            _check_patience(settings, dialect, step, max_searches)
    return list(dict.fromkeys(passed))


def check_golden(
    golden: Iterable[Sequence[str]],
    settings: RewardSettings = DEFAULTS,
    field: str = "rows",
    stream: TextIO | None = None,
) -> int:
    """How many questions of a data set can be won: an answer that repeats a golden one scores 1.0.

    Published files hold a few that cannot (NQ's test file has the answer ")"); they are told on ``stream``
    (stderr). More than `MAX_UNWINNABLE_SHARE` of them means that the golden answers are not what they seem.

    Returns:
        The number of questions that can be won.

    Raises:
        UserError: too many cannot: their golden answers are empty after normalisation, or hold a tag.
    """
    count, lost, first = 0, 0, ""
    normaliser, plain = get_normaliser(settings.normaliser), settings.unshaped()
    dialect = next(iter(DIALECTS.values()))
    for count, answers in enumerate(golden, start=1):
        usable = (a for a in answers if normaliser(a))
        if not any(_worth(a, answers, dialect, plain) == 1.0 for a in usable):
            lost += 1
            first = first or f"{count}: {list(answers)!r}"
    told = f"{lost} of {count} questions cannot be won, the first is row {first}"
    if lost > MAX_UNWINNABLE_SHARE * count:
        raise UserError(field, told, "no golden answer of theirs can be matched: repair or remove them")
    if lost:
        print(f"reward: {field}: {told}", file=stream or sys.stderr, flush=True)
    return count - lost


def _worth(answer: str, golden: Sequence[str], dialect: Dialect, settings: RewardSettings) -> float:
    text = f"{dialect.answer.open}{answer}{dialect.answer.close}"
    return score(Reading([text], n_policy_tokens=1), golden, dialect, settings).total


def _check_tiers(settings: RewardSettings, dialect: Dialect, step: int) -> list[str]:
    found = score(read_spans(honest(dialect)), GOLDEN, dialect, settings, step).total
    if found != 1.0:
        raise UserError(
            "reward gate", f"an honest right answer scores {found}", "must score 1.0: see scout reward gate"
        )
    passed = ["1.000  an honest right answer"]
    for hack in known_hacks(dialect):
        found = score(read_spans(hack.spans), hack.golden, dialect, settings, step).total
        wanted = hack.earns(settings, settings.format_at(step))
        if not math.isclose(found, wanted, abs_tol=1e-12):
            raise UserError(
                "reward gate", f"{hack.name} ({dialect.name}) scores {found}", f"must score {wanted}: a leak"
            )
        passed.append(f"{found:.3f}  {hack.name}")
    return passed


def _check_order(settings: RewardSettings, dialect: Dialect, step: int) -> None:
    best = score(read_spans(honest(dialect)), GOLDEN, dialect, settings, step).total
    for hack in known_hacks(dialect):
        found = score(read_spans(hack.spans), hack.golden, dialect, settings, step).total
        if found >= best:
            raise UserError(
                "reward gate",
                f"{hack.name} scores {found:.3f}, an honest right answer {best:.3f}",
                "lower the penalties: they are worth more than being right",
            )


def _check_patience(settings: RewardSettings, dialect: Dialect, step: int, max_searches: int) -> None:
    """Where a right answer after every search is worth no more than a wrong one at once, giving up wins."""
    spans = honest(dialect, max(1, max_searches))
    right = score(read_spans(spans), GOLDEN, dialect, settings, step).total
    wrong = score(read_spans(giving_up(dialect)), GOLDEN, dialect, settings, step).total
    if right <= wrong:
        raise UserError(
            "reward gate",
            f"a right answer after {max_searches} searches scores {right:.3f}, a wrong guess {wrong:.3f}",
            "lower the penalties, or the number of turns",
        )
