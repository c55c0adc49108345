"""The training process of the engine verl_tool: `… -m scout_train.verl_tool.runner CONFIG TEMP`.

Runs in ``.venv-verl-tool``, started by `scout_train.launch`. Does what verl-tool's `main_ppo` does, with its
trainer in this process instead of in a Ray actor.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from scout_train.verl_tool.start import MODEL


def train(config: Any, temp_dir: str, last_step: int) -> None:
    """Run the trainer to the last step.

    Args:
        last_step: step of the checkpoint to go on from; 0 without one.
    """
    import verl
    from omegaconf import OmegaConf, open_dict

    from scout_train.runner import mark, start_ray
    from scout_train.verl_tool import patches

    patches.require_version(verl.__version__)
    patches.runtime_env()
    start_ray(config, temp_dir)
    if config.trainer.device == "cpu":
        config.trainer.device = "cuda"  # there only the name of the resource that Ray places workers by
    import verl_tool.trainer.main_ppo as main_ppo

    from scout_train.verl_tool.trainer import ScoutVerlToolTrainer

    mark("verl-tool is imported")
    OmegaConf.resolve(config)
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "transformers":
        with open_dict(config):  # a resumed run goes on drawing, it does not draw the same again
            rollout.engine_kwargs.transformers.seed += 1_000_003 * last_step
    main_ppo.RayPPOTrainer = ScoutVerlToolTrainer  # the name by which its task runner makes the trainer
    main_ppo.TaskRunner.__ray_metadata__.modified_class().run(config)


def main(argv: list[str]) -> int:
    """``argv``: the composed configuration and the folder for Ray."""
    from omegaconf import OmegaConf

    from scout_train.resume import checkpoints, step_of
    from scout_train.runner import told

    config = OmegaConf.load(Path(argv[0]))
    config.actor_rollout_ref.model.path = str(Path(config.scout.run.dir) / MODEL)

    def run() -> None:
        found = checkpoints(Path(config.trainer.default_local_dir))
        last_step = step_of(found[-1]) if found else 0
        if last_step < int(config.trainer.total_training_steps):
            train(config, argv[1], last_step)

    return told(run)


if __name__ == "__main__":
    from scout_train.runner import leave

    leave(main(sys.argv[1:]))
