"""`scout train`: compose a recipe, check what it needs, run verl's trainer, leave nothing behind."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.environment import environment
from scout_train.options import build_config, parser
from scout_train.words import choice_of

STALLED = 4  # exit code: no progress for --stall-timeout-s


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
    from scout_train.rundir import finished, go_on_from, locked, prepare

    args = parser("scout train", (__doc__ or "").split("\n")[0]).parse_args(argv)
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
        start_step = go_on_from(config, out)
        preflight(facts, args.skip_preflight)
        prepare(config, out, start_step)
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
