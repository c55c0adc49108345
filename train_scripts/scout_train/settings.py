"""The ``scout.*`` section of a run's configuration: every key that this project reads, with its type.

Keys under ``scout`` that are not fields here are refused when a run is composed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scout_reward.settings import RewardSettings

MISSING = "???"  # OmegaConf's mark for a value that must be given


@dataclass
class EpisodeSection:
    """The budget of a trajectory; becomes `scout_agent.episode.EpisodeSettings`."""

    dialect: str = MISSING
    max_turns: int = MISSING  # type: ignore[assignment]
    max_turn_tokens: int = MISSING  # type: ignore[assignment]
    max_obs_tokens: int = MISSING  # type: ignore[assignment]
    turn_timeout_s: float = MISSING  # type: ignore[assignment]
    trajectory_timeout_s: float = MISSING  # type: ignore[assignment]
    force_answer: bool = False  # before the last turn the tool says that it is the last
    max_same_searches: int = 0  # one more identical search is answered by a note; 0: no limit


@dataclass
class ToolsSection:
    """The tool server, by its base URL."""

    url: str = MISSING
    token_env: str = ""  # variable with the server's bearer token; the token itself is never written down
    timeout_s: float = MISSING  # type: ignore[assignment]
    max_connections: int = 256
    outage_patience_s: float = 0.0  # how long a call waits for a server that is gone, e.g. restarted


@dataclass
class RewardSection:
    """What a reward may be told; becomes `scout_reward.settings.RewardSettings`, whose names these are."""

    format_score: float = MISSING  # type: ignore[assignment]
    format_schedule: str = "constant"
    format_end: float = 0.0
    format_steps: int = 0
    answer_tags: str = "divide"
    normaliser: str = "search_r1"
    outcome: str = "em"
    step_penalty: float = 0.0
    quadratic_step_penalty: float = 0.0
    duplicate_query_penalty: float = 0.0
    duplicate_query_rouge_l: float = 0.8
    overlong_penalty: float = 0.0
    overlong_max_tokens: int = 0
    overlong_buffer_tokens: int = 0
    no_search_penalty: float = 0.0
    no_evidence_penalty: float = 0.0
    timeout_score: float = 0.0  # ours: reward of a trajectory that a deadline ended
    overlong_mask: bool = False  # ours: see `scout_train.overlong`; not together with overlong_penalty


@dataclass
class SamplerSection:
    """What verl's replay buffer cannot be told elsewhere."""

    poll_interval_s: float = MISSING  # type: ignore[assignment]
    max_infra_error_share: float = MISSING  # type: ignore[assignment]
    carry_max_steps: int = 1  # how many steps old a surplus group may be when it is trained; 0: drop them


@dataclass
class CreditSection:
    """How turns share a trajectory's reward, where ``algorithm.adv_estimator`` looks at turns."""

    step_weight: float = 1.0  # GiGPO's ω: weight of the turn's advantage beside the trajectory's


@dataclass
class RunSection:
    """Where a run writes and what it calls itself in traces."""

    dir: str = MISSING
    stage: str = MISSING
    model: str = MISSING
    keep_checkpoints: int = 2


@dataclass
class ClusterSection:
    """What the processes of a run may use."""

    torch_threads: int = MISSING  # type: ignore[assignment]
    ray_address: str = "local"  # a Ray of the run's own; "auto" or an address: the cluster that is there


@dataclass
class ScoutSection:
    """All of ``scout.*``."""

    episode: EpisodeSection = field(default_factory=EpisodeSection)
    tools: ToolsSection = field(default_factory=ToolsSection)
    reward: RewardSection = field(default_factory=RewardSection)
    sampler: SamplerSection = field(default_factory=SamplerSection)
    credit: CreditSection = field(default_factory=CreditSection)
    run: RunSection = field(default_factory=RunSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)


def read_settings(config: Any) -> ScoutSection:
    """The typed ``scout`` section of a composed configuration (an OmegaConf DictConfig)."""
    from omegaconf import OmegaConf

    merged = OmegaConf.merge(OmegaConf.structured(ScoutSection), config.scout)
    found: ScoutSection = OmegaConf.to_object(merged)
    return found


def reward_settings(section: Any) -> RewardSettings:
    """The reward room's settings out of ``scout.reward``, a section or its configuration.

    Raises:
        UserError: naming the setting that cannot be used.
    """
    from scout_reward.settings import RewardSettings

    return RewardSettings(**{f.name: getattr(section, f.name) for f in fields(RewardSettings)})


def check_settings(config: Any) -> None:
    """Settings of ours that must fit each other and verl's.

    Raises:
        UserError: over-long trajectories both masked and punished; surplus groups carried over although their
            old log-probabilities would be those of newer weights.
    """
    from scout_protocol.errors import UserError
    from scout_train import overlong

    overlong.check(config.scout.reward)
    carry = config.scout.sampler.carry_max_steps
    if "rollout_correction" not in config.algorithm:
        return  # engine verl_tool: a carried group's old log-probabilities are always those of sampling
    bypass = config.algorithm.rollout_correction.get("bypass_mode", False)
    if config.algorithm.filter_groups.enable and carry and not bypass:
        raise UserError(
            "scout.sampler.carry_max_steps",
            carry,
            "set it to 0, or algorithm.rollout_correction.bypass_mode=true: old log-probabilities computed "
            "anew would hide that carried groups come from older weights",
        )
