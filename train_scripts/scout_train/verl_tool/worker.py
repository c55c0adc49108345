"""``actor_rollout_ref.model.external_lib``: imported by a training worker before it builds its model."""

from __future__ import annotations

from scout_train.verl_tool import patches

patches.exact_aggregation()
