"""`scout train`: compose a recipe, check what it needs, run verl's trainer, leave nothing behind."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.words import add_words, choice_of

STALLED = 4  # exit code: no progress for --stall-timeout-s


def parser(prog: str = "scout train", told: str = (__doc__ or "").split("\n")[0]) -> argparse.ArgumentParser:
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


def shared_variables(config: Any) -> dict[str, str]:
    """Variables that every process of the run needs, on whatever node."""
    device = str(config.trainer.device)
    # verl ships cuda and npu and finds out which one it has; "cpu" is ours
    platform = {"VERL_USE_EXTERNAL_MODULES": "scout_train.cpu.platform", "VERL_PLATFORM": "cpu"}
    # vLLM's CPU build: GiB of its cache, no binding to cores that others use too, its processes on loopback,
    # and no C++ compiler at its first sample (enforce_eager does not reach the sampler)
    vllm_cpu = {
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    return {
        **(platform | vllm_cpu if device == "cpu" else {}),
        "VLLM_NO_USAGE_STATS": "1",  # nothing leaves this machine
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONUNBUFFERED": "1",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "VERL_LOGGING_LEVEL": "WARN",
        "TRANSFER_QUEUE_ENABLE": "1",
        "TQ_NUM_THREADS": "1",
        "TQ_CLIENT_ZMQ_IO_THREADS": "1",
        "OMP_NUM_THREADS": str(config.scout.cluster.torch_threads),
        "OMP_WAIT_POLICY": "passive",  # spinning threads starve the other processes of a small machine
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NCCL_DEBUG": "WARN",
    }


def environment(config: Any, temp_dir: str) -> dict[str, str]:
    """Variables of every process of the run on this machine; a Ray of its own passes them to its workers."""
    run_dir = Path(config.scout.run.dir)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}  # no foreign cluster
    env.update(shared_variables(config))
    env.update(
        TMPDIR=temp_dir,  # verl leaves a lock file there for every checkpoint
        HF_DATASETS_CACHE=f"{temp_dir}/datasets",
        TENSORBOARD_DIR=str(run_dir / "tensorboard"),
        WANDB_DIR=str(run_dir),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_DEDUP_LOGS="0",
        # Ray keeps idle workers ready for tasks; a run has only actors, each with a process of its own.
        RAY_enable_worker_prestart="0",
        RAY_prestart_worker_first_driver="0",
        # Ray's 15 makes the model yield to every other process: a browser tab doubles the time of a step.
        RAY_worker_niceness="0",
    )
    if config.trainer.device == "cpu":
        env["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    if not env.get("WANDB_API_KEY") and not env.get("WANDB_MODE"):
        env["WANDB_MODE"] = "offline"  # nothing leaves this machine, nothing asks for a key
    return env


def run(config: Any, args: argparse.Namespace, out: Path, start_step: int) -> int:
    """Start the guard and the trainer under it, show progress, and return the exit code."""
    from scout_train import follow, guard

    temp_dir = tempfile.mkdtemp(prefix="sc-", dir="/tmp")
    log = out / "console.log"
    env = environment(config, temp_dir)
    runner = [sys.executable, "-m", "scout_train.runner", str(out / "config.yaml"), temp_dir]
    if args.engine == "verl_tool":
        from scout_train.verl_tool import start

        runner, env = start.command(config, out, temp_dir), start.environment(env, temp_dir)
    command = [
        sys.executable,
        "-m",
        "scout_train.guard",
        temp_dir,
        str(args.time_limit_s),
        str(log),
        "--",
        *runner,
    ]
    follower = follow.Follower(out, args.stall_timeout_s)
    process = subprocess.Popen(  # noqa: S603
        command, env=env, stdin=subprocess.PIPE, start_new_session=True
    )
    code: int | None = None
    stalled = False
    try:
        with follow.Progress(start_step, args.steps) as progress:
            while code is None:
                code = _wait(process, 0.3)
                for metrics in follower.new_steps():
                    progress.show(metrics)
                if code is None and follower.stalled():
                    stalled = True
                    break
    finally:
        if process.stdin is not None:
            process.stdin.close()  # the guard ends everything when this pipe closes
        process.wait(timeout=60)
        guard.end_session(process.pid)
        shutil.rmtree(temp_dir, ignore_errors=True)
    if stalled:
        return _say(STALLED, f"no progress for {args.stall_timeout_s:.0f} s: the run was ended", log)
    if code == guard.TIME_LIMIT:
        return _say(code, f"--time-limit-s {args.time_limit_s:.0f} is over; the same command goes on", log)
    if code and not 0 < code < 128:
        number = code - 128 if code > 0 else -code  # the trainer, or the guard itself
        killed = (
            f"the run was ended by signal {number} (9 is often a lack of memory); the same command goes on"
        )
        return _say(128 + number, killed, log)
    if code:
        return _say(code, follow.failure(log), log)
    return 0


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _say(code: int, message: str, log: Path) -> int:
    print(f"scout train: {message}\nscout train: the whole log is {log}", file=sys.stderr)
    return code


def print_recipe(args: argparse.Namespace) -> None:
    """Every key that the overlays and ``--set`` change, under the overlay it comes from."""
    from scout_train.compose import overlays, source_file

    for source, keys in overlays(choice_of(args)):
        print(source_file(source))
        for key, value in keys.items():
            print(f"  {key}: {value}")
    if args.set:
        print("--set\n  " + "\n  ".join(args.set))


def preflight(facts: Any, skip: list[str]) -> None:
    """Run the checks: one line where all is well, the table where not; the report goes into the run's folder.

    Raises:
        UserError: the first check that refuses.
    """
    from scout_train.preflight.cli import summary
    from scout_train.preflight.finding import Verdict
    from scout_train.preflight.run import refused, run, write

    started = time.perf_counter()
    findings = run(facts, skip, whole=False)
    for finding in findings:
        if finding.verdict is not Verdict.OK:
            print(finding.line)
    print(summary(findings, time.perf_counter() - started), flush=True)
    write(findings, skip, started, facts.out / "preflight.json")
    if error := refused(findings):
        raise error


def main(argv: list[str]) -> int:
    """The command; 0 when the run is complete, 2 for wrong input, else what `run` says.

    Raises:
        UserError: wrong input or a missing precondition; nothing has been started.
    """
    from scout_train import checks
    from scout_train.preflight.cli import facts_of
    from scout_train.preflight.run import check_names
    from scout_train.resume import replace_text
    from scout_train.rundir import finished, locked, prepare

    args = parser().parse_args(argv)
    check_names(args.skip_preflight, "--skip-preflight")
    if args.engine == "verl_tool":
        from scout_train.verl_tool import paths

        paths.checkout(), paths.python()
    else:
        checks.check_verl()
    config = build_config(args)
    facts = facts_of(args, config)
    if args.val is not None:
        checks.check_rows("--val", str(args.val), 1, config)
    elif args.eval_every:
        raise UserError("--eval-every", args.eval_every, "needs --val")
    if args.dry_run:
        print_recipe(args)
        return 0
    if args.engine == "verl_tool":
        paths.check_packages(config)
    else:
        checks.check_packages(config)
    out = args.out.resolve()
    with locked(out):
        if done := finished(out, args.steps):
            print(f"already finished: {done} steps, model in {out / 'hf'}")
            return 0
        preflight(facts, args.skip_preflight)
        start_step = prepare(config, out)
        if start_step:
            print(f"going on from step {start_step}")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        code = run(config, args, out, start_step)
        if code == 0 and args.engine == "verl_tool":
            from scout_train.verl_tool import start

            start.export(config)
        if code == 0:
            replace_text(out / "finished", f"{args.steps}\n")
            print(f"finished: {args.steps} steps, model in {out / 'hf'}")
        return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"scout train: {error}")
