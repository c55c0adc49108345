"""`scout sft train`: the warm-up. Runs verl's SFT trainer, follows, stops, resumes it, exports the result."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scout_agent.model_folder import weights_bytes
from scout_data.rows import read_rows
from scout_data.split import question_key
from scout_protocol.errors import UserError
from scout_protocol.records import SFTRow
from scout_sft import checkpoints as saved
from scout_sft import run_folder
from scout_sft.export import export_checkpoint
from scout_sft.history import History, add_probe, past, read_probes
from scout_sft.launch import MetricsTail, watch, worker_command, worker_env
from scout_sft.plan import unit_interval
from scout_sft.probe import probe
from scout_sft.progress import Progress
from scout_sft.rows import read_demos, write_demos
from scout_sft.stop import LOSS, choose, reason_to_stop, rules
from scout_sft.verl_config import TrainSettings, verl_overrides

RESULT = "result.json"


def train(model: Path, demos: Path, out: Path, settings: TrainSettings) -> dict[str, Any]:
    """Train ``model`` on ``demos``; the result is the Hugging Face folder ``out/hf``.

    Killed at any moment, the same call goes on from the last checkpoint; when it is done already, it
    returns at once.

    Returns:
        What came out: steps, losses, the exported step, seconds.

    Raises:
        UserError: a wrong input, another run in ``out``, or a trainer that failed or stalled.
    """
    model, demos, out = model.resolve(), demos.resolve(), out.resolve()
    rows = read_demos(demos)
    _check_inputs(model, settings)
    _check_held_out(rows, settings)
    mark = run_folder.fingerprint(model, demos, settings)
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("--out", out, f"cannot be made: {error.strerror}") from error
    with run_folder.only_one(out):
        run_folder.claim(out, mark)
        if (out / RESULT).is_file() and (out / "hf" / "config.json").is_file():
            done: dict[str, Any] = json.loads((out / RESULT).read_text(encoding="utf-8"))
            return done
        return _run(model, rows, out, settings)


def _run(model: Path, rows: list[SFTRow], out: Path, settings: TrainSettings) -> dict[str, Any]:
    start = time.monotonic()
    train_rows, val_rows = split(rows, settings.val_share, settings.batch, settings.seed)
    if LOSS in rules(settings) and not val_rows:
        told = f"{len(rows)} demonstrations, batch {settings.batch}"
        raise UserError("--stop loss", told, "too few to hold any out: lower --batch, or give --steps")
    train_file, val_file = out / "data" / "train.parquet", out / "data" / "val.parquet"
    write_demos(train_file, train_rows)
    if val_rows:
        write_demos(val_file, val_rows)
    if settings.steps == 0:
        most = math.ceil(settings.epochs * len(train_rows) / settings.batch)
        planned = replace(settings, steps=max(1, most))
    else:
        planned = settings
    run = _Run(model, out, settings, planned.steps, past(out / "logs"), read_probes(out))
    first = saved.latest_step(run.checkpoints)
    if not run.enough() and first < planned.steps:
        keys = verl_overrides(planned, model, train_file, val_file if val_rows else None, out)
        _train_from(first, keys, run)
        run.enough()  # the last checkpoint is probed like any other
    if run.reason is None and saved.latest_step(run.checkpoints) < planned.steps:
        raise UserError(
            "the trainer", f"ended at step {saved.latest_step(run.checkpoints)}", f"see {out / 'logs'}"
        )
    step, kept_by = choose(settings, saved.steps_on_disk(run.checkpoints), run.history, run.probes)
    export_checkpoint(run.checkpoints / f"global_step_{step}", model, out / "hf", settings.lora)
    facts = out / "logs" / "facts.json"
    last = max(run.history.train, default=0)
    result = {
        **(json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}),
        "steps": last,
        "most_steps": planned.steps,
        "stopped_by": run.reason or ("steps" if settings.steps else "epochs"),
        "exported_step": step,
        "kept_by": kept_by,
        "train_demos": len(train_rows),
        "val_demos": len(val_rows),
        "loss": run.history.train.get(step, {}).get("loss"),
        "val_loss": run.history.val.get(step),
        "probe": run.probes.get(step),
        "resumed_from": first,
        "seconds": round(time.monotonic() - start, 1),
    }
    run_folder.replace(out / RESULT, json.dumps(result, indent=1) + "\n")
    return result


@dataclass(slots=True)
class _Run:
    """A warm-up under way, and whether it has gone on for long enough.

    ``reason`` is the rule that stopped it. A checkpoint can be exported, so a rule that needs none of its own
    waits for the first one.
    """

    model: Path
    out: Path
    settings: TrainSettings
    steps: int
    history: History
    probes: dict[int, dict[str, Any]] = field(default_factory=dict)
    reason: str | None = None

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def enough(self) -> bool:
        """Probe the newest checkpoint where that is asked for; whether a rule says to stop."""
        newest = saved.latest_step(self.checkpoints)
        if not newest:
            return False
        if self.settings.probe_rows and newest not in self.probes:
            found = probe(self.checkpoints / f"global_step_{newest}", self.model, self.out, self.settings)
            add_probe(self.out, newest, found)
            self.probes[newest] = {"step": newest, **found}
            told = f"format {found['format_adherence']:.1%}, pass@1 {found['pass_at_1']:.3f}"
            print(f"scout sft train: probe of step {newest}: {told}", file=sys.stderr, flush=True)
        self.reason = reason_to_stop(self.settings, self.history, self.probes)
        return self.reason is not None

    def best_on_disk(self) -> int | None:
        """The checkpoint that pruning must spare."""
        steps = saved.steps_on_disk(self.checkpoints)
        return choose(self.settings, steps, self.history, self.probes)[0] if steps else None


def _train_from(first: int, keys: dict[str, Any], run: _Run) -> None:
    """Run the trainer from step ``first`` to the end, keeping metrics and checkpoints in order meanwhile."""
    out, settings, history = run.out, run.settings, run.history
    number = 1 + len(list((out / "logs").glob("attempt-*.jsonl")))
    metrics, log = out / "logs" / f"attempt-{number}.jsonl", out / "logs" / f"attempt-{number}.log"
    metrics.touch()
    error, job = out / "logs" / "error.json", out / "logs" / "job.json"
    error.unlink(missing_ok=True)
    run_folder.replace(
        job,
        json.dumps(
            {
                "keys": keys,
                "overrides": list(settings.overrides),
                "seed": settings.seed,
                "error": str(error),
                "parent": os.getpid(),
            }
        ),
    )
    with Progress("warm-up: step", run.steps, first) as progress:
        print(f"scout sft train: from step {first}; output in {log}", file=sys.stderr, flush=True)

        def on_metrics(step: int, data: dict[str, Any]) -> None:
            history.add(step, data)
            if "train/loss" in data:
                val = history.val.get(max(history.val, default=0))
                seen = "" if val is None else f" · val {val:.4f}"
                progress.update(step, f"loss {data['train/loss']:.4f}{seen}")
            if step % settings.save_every == 0:
                saved.prune(run.checkpoints, run.best_on_disk())

        env = worker_env(settings, metrics, out / "tensorboard")
        try:
            status = watch(
                worker_command(settings, job),
                env,
                log,
                MetricsTail(metrics),
                on_metrics,
                settings.stall_timeout_s,
                run.enough,
            )
        finally:
            history.write(out / "metrics.jsonl")
    if error.is_file():
        raise UserError(*json.loads(error.read_text(encoding="utf-8")))
    if status != 0:
        raise UserError("the trainer", f"exit status {status}", f"{_last_line(log)} (all of it in {log})")


def split(rows: Sequence[SFTRow], share: float, batch: int, seed: int) -> tuple[list[SFTRow], list[SFTRow]]:
    """Training and validation rows. Rows of one question stay together, whatever the order of the file.

    verl's trainer drops an incomplete validation batch, so about ``share`` of the rows is rounded to whole
    batches, at least one; where that is more than a fifth of the rows, nothing is held out.
    """
    wanted = (round(share * len(rows) / batch) or 1) * batch if share > 0 else 0
    if not wanted or wanted > len(rows) // 5:
        return list(rows), []
    ranked = sorted(range(len(rows)), key=lambda i: (unit_interval(seed, "val", rows[i].question), i))
    held_out = set(ranked[:wanted])
    # other rows of a held-out question are left out of training too
    border = {rows[i].question for i in held_out}
    train_rows = [row for i, row in enumerate(rows) if i not in held_out and row.question not in border]
    return train_rows, [rows[i] for i in sorted(held_out)]


def _check_inputs(model: Path, settings: TrainSettings) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        if not (model / name).is_file():
            raise UserError(
                "--model", model, f"is not a model folder (no {name}): make one with `scout sft init`"
            )
    weights_bytes(model)
    if not _installed("verl"):
        raise UserError("verl", "not installed", "run `make setup` in the checkout")
    if settings.device == "cpu" and not _installed(settings.platform_module.partition(".")[0]):
        raise UserError("--platform-module", settings.platform_module, "cannot be imported: run `make setup`")


def _check_held_out(demos: Sequence[SFTRow], settings: TrainSettings) -> None:
    """A probe must ask what no demonstration answers.

    Raises:
        UserError: it does, or its file is not one of rows.
    """
    if not settings.probe_rows:
        return
    shown = {question_key(demo.question) for demo in demos}
    asked = read_rows(settings.probe_rows)[: settings.probe_limit]
    both = sum(question_key(row.question) in shown for row in asked)
    if both:
        told = f"{both} of {len(asked)} questions are demonstrated"
        raise UserError(f"--probe-rows {settings.probe_rows}", told, "give questions that are held out")


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _last_line(log: Path) -> str:
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1][:300] if lines else "it said nothing"
