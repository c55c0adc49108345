"""Over-long trajectories: masked, or punished by the paper's formula on policy tokens, never both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason
from scout_train.overlong import Overlong, overlong_rule
from scout_train.settings import check_settings


def eq_13(length: int, l_max: int, l_cache: int) -> float:
    """DAPO, arXiv:2503.14476, eq. 13, as it is printed."""
    if length <= l_max - l_cache:
        return 0.0
    if length <= l_max:
        return ((l_max - l_cache) - length) / l_cache
    return -1.0


@pytest.mark.parametrize("l_cache", [1, 16, 99])
def test_punishment_is_equation_13_and_capped(l_cache: int) -> None:
    rule = Overlong(mask=False, max_tokens=100, buffer_tokens=l_cache, penalty=0.5)
    for length in range(0, 300):
        assert rule.punishment(length) == pytest.approx(0.5 * eq_13(length, 100, l_cache))


def test_without_a_buffer_nothing_is_punished_and_without_mask_nothing_masked() -> None:
    rule = Overlong(mask=False, max_tokens=10, buffer_tokens=0, penalty=1.0)
    assert rule.punishment(10_000) == 0.0 and not rule.masks(StopReason.LENGTH)


def test_only_running_out_of_room_is_masked() -> None:
    rule = Overlong(mask=True, max_tokens=10, buffer_tokens=0, penalty=1.0)
    assert [s for s in StopReason if rule.masks(s)] == [StopReason.LENGTH]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("overlong_mask=true", "overlong_buffer_tokens=8"), "choose one"),
        (("overlong_buffer_tokens=512",), "below overlong_max_tokens"),
        (("overlong_buffer_tokens=-1",), "at least 0"),
        (("overlong_penalty=-1",), "at least 0"),
    ],
)
def test_both_or_nonsense_is_refused(
    compose: Callable[..., Any], settings: tuple[str, ...], says: str
) -> None:
    config = compose("grpo", *(f"scout.reward.{s}" for s in settings))
    with pytest.raises(UserError, match=says):
        check_settings(config)


def test_l_max_is_the_whole_response_unless_given(compose: Callable[..., Any]) -> None:
    assert overlong_rule(compose("grpo")).max_tokens == 512
    assert overlong_rule(compose("grpo", "scout.reward.overlong_max_tokens=64")).max_tokens == 64


def test_carried_groups_need_the_log_probs_of_sampling(compose: Callable[..., Any]) -> None:
    anew = "algorithm.rollout_correction.bypass_mode=false"
    check_settings(compose("dapo"))
    check_settings(compose("grpo", anew))  # nothing is carried without filtering
    check_settings(compose("dapo", anew, "scout.sampler.carry_max_steps=0"))
    with pytest.raises(UserError, match="carry_max_steps"):
        check_settings(compose("dapo", anew))
