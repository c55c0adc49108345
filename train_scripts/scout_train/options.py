"""What a run is told: the options of `scout train` and `scout preflight`, and the configuration they make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scout_train.words import add_words, choice_of


def parser(prog: str, told: str) -> argparse.ArgumentParser:
    """The command line, also of `scout preflight`, which checks the run that these options describe."""
    p = argparse.ArgumentParser(prog=prog, description=told)
    add_words(p)
    p.add_argument("--model", type=Path, required=True, help="model folder to start from")
    p.add_argument("--train", type=Path, required=True, help="training questions, parquet")
    p.add_argument("--val", type=Path, help="validation questions, parquet (with --eval-every)")
    p.add_argument("--tools", required=True, metavar="URL", help="base URL of the tool server")
    p.add_argument(
        "--tools-token-env", default="", metavar="NAME", help="variable with the tool server's bearer token"
    )
    p.add_argument(
        "--out", type=Path, required=True, help="folder of the run; an interrupted run goes on there"
    )
    p.add_argument("--steps", type=int, required=True, help="updates in total, resumed ones included")
    p.add_argument(
        "--save-every", type=int, default=5, metavar="STEPS", help="checkpoint interval (default 5)"
    )
    p.add_argument("--eval-every", type=int, default=0, metavar="STEPS", help="validate; 0: never (default)")
    p.add_argument("--seed", type=int, default=0, help="of data order and sampling (default 0)")
    p.add_argument("--stage", help="name in traces (default: the algorithm)")
    p.add_argument(
        "--stall-timeout-s", type=float, default=300.0, help="end a run without progress (0: never)"
    )
    p.add_argument("--time-limit-s", type=float, default=0.0, help="end a run after so long (0: never)")
    p.add_argument(
        "--skip-preflight", action="extend", nargs="+", default=[], metavar="NAME", help="checks to leave out"
    )
    p.add_argument(
        "--readiness", type=Path, metavar="FILE", help="report of `scout sft readiness` on the model"
    )
    p.add_argument(
        "--dry-run", action="store_true", help="print what the recipe changes, check it, start nothing"
    )
    return p


def build_config(args: argparse.Namespace) -> Any:
    """The complete configuration of a run.

    Raises:
        UserError: unknown overlay or key, wrong type, numbers that do not fit each other.
    """
    from omegaconf import open_dict

    from scout_train import checks
    from scout_train.compose import compose, parse_setting
    from scout_train.settings import check_settings

    config = compose(choice_of(args), [parse_setting(text) for text in args.set])
    out, stage = args.out.resolve(), args.stage or args.algo
    with open_dict(config):
        config.actor_rollout_ref.model.path = config.critic.model.path = str(args.model.resolve())
        config.data.train_files = str(args.train.resolve())
        config.data.val_files = str((args.val or args.train).resolve())
        config.data.seed = config.actor_rollout_ref.rollout.seed = args.seed
        config.trainer.default_local_dir = str(out / "ckpt")
        config.trainer.total_training_steps = args.steps
        config.trainer.save_freq, config.trainer.test_freq = args.save_every, args.eval_every or -1
        config.trainer.val_before_train = False
        config.trainer.project_name, config.trainer.experiment_name = "scout", stage
        config.scout.tools.url = args.tools.rstrip("/")
        config.scout.tools.token_env = args.tools_token_env or config.scout.tools.token_env
        config.scout.run.dir, config.scout.run.stage, config.scout.run.model = (
            str(out),
            stage,
            args.model.name,
        )
    if args.engine == "verl_tool":
        from scout_train.verl_tool.settle import settle

        settle(config)
    checks.check_config(config)
    check_settings(config)
    return config
