"""What a training run was told, read from its ``config.yaml``: its budget and its reward.

A score is comparable with the reward that a run optimised only under the same settings.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_reward.settings import RewardSettings

CONFIG = "config.yaml"
# Time limits are not among them: they say what a machine can do, not what the policy may.
EPISODE_KEYS = (
    "dialect",
    "max_turns",
    "max_turn_tokens",
    "max_obs_tokens",
    "force_answer",
    "max_same_searches",
)


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The episode settings and the reward settings of the run in a folder (as `scout train --out`).

    Raises:
        UserError: no such run, or its configuration is damaged or of another version.
    """
    import yaml

    path = folder / CONFIG
    if not path.is_file():
        raise UserError("--like", folder, f"has no {CONFIG}: name the folder that `scout train --out` wrote")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        episode = {key: config["scout"]["episode"][key] for key in EPISODE_KEYS}
        episode["max_response_tokens"] = config["data"]["max_response_length"]
        section = config["scout"]["reward"]
        reward = {field.name: section[field.name] for field in fields(RewardSettings)}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
        raise UserError("--like", path, f"cannot be read ({' '.join(str(error).split())[:120]})") from error
    except KeyError as error:
        raise UserError("--like", path, f"has no key {error}: it is of another version of Scout") from error
    return episode, reward
