"""The training process: `python -m scout_train.runner RUN/config.yaml`, started by `scout_train.launch`.

Does what verl's `main_ppo` does, with the trainer in this process instead of in a Ray actor: one process less
that imports torch and verl.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scout_agent.model_folder import export_model
from scout_protocol.errors import UserError
from scout_train.errors import UnfilledStepError
from scout_train.vital import VITAL, watch_run


def start_ray(config: Any, temp_dir: str) -> None:
    """A private Ray in ``temp_dir``, or the cluster at ``scout.cluster.ray_address``.

    The variables of ``runtime_env.env_vars`` reach every worker, on every node.
    """
    import ray
    from omegaconf import OmegaConf

    from scout_train.environment import shared_variables

    arguments = dict(OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True))
    asked = {k: v for k, v in (arguments.pop("runtime_env", None) or {}).items() if v is not None}
    address = str(config.scout.cluster.ray_address)
    if address == "local":  # workers inherit this process's environment: see `scout_train.environment`
        arguments["_temp_dir"] = temp_dir
    else:  # Ray takes sizes only where it starts; workers of other nodes inherit nothing
        arguments = {}
        asked["env_vars"] = shared_variables(config) | asked.get("env_vars", {})
    if config.trainer.device != "cpu":
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        asked = OmegaConf.to_container(OmegaConf.merge(get_ppo_ray_runtime_env(config), asked))
    if asked:
        arguments["runtime_env"] = asked
    ray.init(address=address, log_to_driver=True, **arguments)
    mark("Ray is up")


def mark(stage: str) -> None:
    """Say how far the start has come; the log shows where start-up time goes."""
    print(f"[scout] {time.perf_counter() - _START:6.1f} s  {stage}", flush=True)


def train(config: Any, temp_dir: str) -> None:
    """Run verl's trainer to the last step.

    Start-up is mostly processes importing torch and verl, so what does not depend on each other overlaps: Ray
    starts while this process imports verl, TransferQueue starts while the training worker does.
    """
    with ThreadPoolExecutor(1) as side:
        ray_up = side.submit(start_ray, config, temp_dir)
        import transfer_queue as tq
        from omegaconf import OmegaConf
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config
        from verl.utils.import_utils import load_class_from_fqn

        if config.trainer.v1.trainer_mode == "separate_async":
            from scout_train.trainer_disaggregated import ScoutTrainerDisaggregated as Trainer
        else:
            from scout_train.trainer import ScoutTrainer as Trainer

        mark("verl is imported")
        validate_config(
            config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        ray_up.result()
        queue_up = side.submit(tq.init, config.transfer_queue)
        trainer, loops, succeeded = None, None, False
        try:
            trainer = Trainer(config)
            trainer.init()
            mark("the training worker is up")
            queue_up.result()
            loops_class = load_class_from_fqn(
                config.actor_rollout_ref.rollout.agent.agent_loop_manager_class, "agent loop manager"
            )
            loops = loops_class.create(
                config,
                trainer.get_llm_client(),
                trainer.get_teacher_client(),
                trainer.get_reward_handles(),
            )
            mark("ready")
            watch_run()
            trainer.fit(loops)
            VITAL.stop()
            succeeded = True
        except Exception:
            # Here: leaving this block waits for threads that may wait for a dead Ray, and ends a living one.
            traceback.print_exc()
            VITAL.end_if_dead()
            raise
        finally:
            if loops is not None:
                loops.close()
            if trainer is not None and getattr(trainer, "logger", None) is not None:
                trainer.logger.finish(exit_code=0 if succeeded else 1)


def told(run: Callable[[], None]) -> int:
    """Run to the end. Returns the exit code: 2 for wrong input, 3 for a step that was not filled, both said.

    A dead worker has ended the process before.
    """
    try:
        run()
    except (UserError, UnfilledStepError) as error:
        print(f"[scout] error: {error}", file=sys.stderr, flush=True)
        return 3 if isinstance(error, UnfilledStepError) else 2
    mark("finished")
    return 0


def leave(code: int) -> None:
    """End this process at once.

    Shutdown hooks of Ray and torch take seconds and have nothing left to save; the guard ends what remains.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_START = time.perf_counter()


def main(argv: list[str]) -> int:
    """``argv``: the composed configuration and the folder for Ray."""
    from omegaconf import OmegaConf

    from scout_train.resume import checkpoints, step_of

    config_path, temp_dir = Path(argv[0]), argv[1]
    config = OmegaConf.load(config_path)

    def run() -> None:
        ckpt_dir, steps = Path(config.trainer.default_local_dir), int(config.trainer.total_training_steps)
        if not checkpoints(ckpt_dir) or step_of(checkpoints(ckpt_dir)[-1]) < steps:
            train(config, temp_dir)
        last = checkpoints(ckpt_dir)[-1] / "actor" / "huggingface"  # `hf_model` in save_contents
        start = Path(config.actor_rollout_ref.model.path)
        export_model(last, start, Path(config.scout.run.dir) / "hf")

    return told(run)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
