"""Over-long trajectories: masked or punished, never both; and surplus groups that may not be carried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason
from scout_train.overlong import masks
from scout_train.settings import check_settings


def test_only_running_out_of_room_is_masked(compose: Callable[..., Any]) -> None:
    on, off = compose("grpo", "scout.reward.overlong_mask=true"), compose("grpo")
    assert [s for s in StopReason if masks(on.scout.reward, s)] == [StopReason.LENGTH]
    assert not any(masks(off.scout.reward, s) for s in StopReason)


def test_masked_and_punished_at_once_is_refused(compose: Callable[..., Any]) -> None:
    punish = [f"scout.reward.overlong_{k}" for k in ("penalty=0.5", "max_tokens=64", "buffer_tokens=8")]
    check_settings(compose("grpo", *punish))
    with pytest.raises(UserError, match="choose one"):
        check_settings(compose("grpo", *punish, "scout.reward.overlong_mask=true"))


def test_carried_groups_need_the_log_probs_of_sampling(compose: Callable[..., Any]) -> None:
    anew = "algorithm.rollout_correction.bypass_mode=false"
    check_settings(compose("dapo"))
    check_settings(compose("grpo", anew))  # nothing is carried without filtering
    check_settings(compose("dapo", anew, "scout.sampler.carry_max_steps=0"))
    with pytest.raises(UserError, match="carry_max_steps"):
        check_settings(compose("dapo", anew))
