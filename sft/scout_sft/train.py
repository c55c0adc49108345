"""`scout sft train`: the warm-up. Runs verl's SFT trainer, follows it, resumes it, exports the result."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scout_agent.model_folder import export_model, weights_bytes
from scout_protocol.errors import UserError
from scout_protocol.records import SFTRow
from scout_sft import checkpoints as saved
from scout_sft.launch import MetricsTail, watch, worker_command, worker_env
from scout_sft.plan import unit_interval
from scout_sft.progress import Progress
from scout_sft.rows import read_demos, write_demos
from scout_sft.verl_config import TrainSettings, verl_overrides

RESULT = "result.json"
# Changing these does not change what is learned, so a run may go on with other values.
FREE = frozenset({"nproc", "threads", "stall_timeout_s", "platform_module", "external_lib", "save_every"})


@dataclass(slots=True)
class History:
    """Metrics by step; of a step that was done twice, the later counts."""

    train: dict[int, dict[str, float]] = field(default_factory=dict)
    val: dict[int, float] = field(default_factory=dict)

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Take in one line of verl's file logger."""
        if "val/loss" in metrics:
            self.val[step] = float(metrics["val/loss"])
        if "train/loss" in metrics:
            self.train[step] = {
                "loss": float(metrics["train/loss"]),
                "grad_norm": float(metrics["train/grad_norm"]),
                # verl logs the rate after its scheduler has moved on
                "next_lr": float(metrics["train/lr"]),
                "tokens": float(metrics["train/global_tokens"]),
            }

    def best(self, steps: Sequence[int]) -> int | None:
        """Of these steps the one with the lowest validation loss."""
        known = [s for s in steps if math.isfinite(self.val.get(s, math.inf))]
        return min(known, key=lambda s: (self.val[s], s)) if known else None

    def write(self, path: Path) -> None:
        """One JSON line per step: step, loss, grad_norm, next_lr, tokens, and val_loss where there is one."""
        lines = []
        for step in sorted(self.train.keys() | self.val.keys()):
            item: dict[str, Any] = {"step": step, **self.train.get(step, {})}
            if step in self.val:
                item["val_loss"] = self.val[step]
            lines.append(json.dumps(item))
        _replace(path, "".join(line + "\n" for line in lines))


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
    mark = _fingerprint(model, demos, settings)
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("--out", out, f"cannot be made: {error.strerror}") from error
    with _only_one(out):
        _claim(out, mark)
        if (out / RESULT).is_file() and (out / "hf" / "config.json").is_file():
            done: dict[str, Any] = json.loads((out / RESULT).read_text(encoding="utf-8"))
            return done
        return _run(model, rows, out, settings)


def _run(model: Path, rows: list[SFTRow], out: Path, settings: TrainSettings) -> dict[str, Any]:
    start = time.monotonic()
    train_rows, val_rows = split(rows, settings.val_share, settings.batch, settings.seed)
    train_file, val_file = out / "data" / "train.parquet", out / "data" / "val.parquet"
    write_demos(train_file, train_rows)
    if val_rows:
        write_demos(val_file, val_rows)
    checkpoints, history = out / "checkpoints", _past(out / "logs")
    first = saved.latest_step(checkpoints)
    if first < settings.steps:
        keys = verl_overrides(settings, model, train_file, val_file if val_rows else None, out)
        _train_from(first, keys, out, settings, history)
    if saved.latest_step(checkpoints) < settings.steps:
        raise UserError(
            "the trainer", f"ended at step {saved.latest_step(checkpoints)}", f"see {out / 'logs'}"
        )
    best = history.best(saved.steps_on_disk(checkpoints))
    step = best if settings.keep == "best" and best else settings.steps
    export_model(checkpoints / f"global_step_{step}" / "huggingface", model, out / "hf")
    facts = out / "logs" / "facts.json"
    result = {
        **(json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}),
        "steps": settings.steps,
        "exported_step": step,
        "train_demos": len(train_rows),
        "val_demos": len(val_rows),
        "loss": history.train.get(settings.steps, {}).get("loss"),
        "val_loss": history.val.get(step),
        "resumed_from": first,
        "seconds": round(time.monotonic() - start, 1),
    }
    _replace(out / RESULT, json.dumps(result, indent=1) + "\n")
    return result


def _train_from(
    first: int, keys: dict[str, Any], out: Path, settings: TrainSettings, history: History
) -> None:
    """Run the trainer from step ``first`` to the end, keeping metrics and checkpoints in order meanwhile."""
    checkpoints = out / "checkpoints"
    number = 1 + len(list((out / "logs").glob("attempt-*.jsonl")))
    metrics, log = out / "logs" / f"attempt-{number}.jsonl", out / "logs" / f"attempt-{number}.log"
    metrics.touch()
    error, job = out / "logs" / "error.json", out / "logs" / "job.json"
    error.unlink(missing_ok=True)
    _replace(
        job,
        json.dumps(
            {"keys": keys, "overrides": list(settings.overrides), "error": str(error), "parent": os.getpid()}
        ),
    )
    with Progress("warm-up: step", settings.steps, first) as progress:
        print(f"scout sft train: from step {first}; output in {log}", file=sys.stderr, flush=True)

        def on_metrics(step: int, data: dict[str, Any]) -> None:
            history.add(step, data)
            if "train/loss" in data:
                val = history.val.get(max(history.val, default=0))
                seen = "" if val is None else f" · val {val:.4f}"
                progress.update(step, f"loss {data['train/loss']:.4f}{seen}")
            if step % settings.save_every == 0:
                saved.prune(checkpoints, history.best(saved.steps_on_disk(checkpoints)))

        env = worker_env(settings, metrics, out / "tensorboard")
        try:
            status = watch(
                worker_command(settings, job),
                env,
                log,
                MetricsTail(metrics),
                on_metrics,
                settings.stall_timeout_s,
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


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _fingerprint(model: Path, demos: Path, settings: TrainSettings) -> dict[str, Any]:
    chosen = {k: v for k, v in asdict(settings).items() if k not in FREE}
    return {
        "settings": json.loads(json.dumps(chosen)),
        "model": str(model),
        "model_config_sha256": hashlib.sha256((model / "config.json").read_bytes()).hexdigest(),
        "demos_sha256": hashlib.sha256(demos.read_bytes()).hexdigest(),
    }


def _claim(out: Path, mark: dict[str, Any]) -> None:
    """Write down what this folder is a run of, or check that it is the same run.

    Raises:
        UserError: it is another one.
    """
    file = out / "run.json"
    if not file.exists():
        _replace(file, json.dumps(mark, indent=1) + "\n")
        return
    known = json.loads(file.read_text(encoding="utf-8"))
    if known != mark:
        flat = {**known.get("settings", {}), **{k: v for k, v in known.items() if k != "settings"}}
        now = {**mark["settings"], **{k: v for k, v in mark.items() if k != "settings"}}
        differing = sorted(k for k in flat.keys() | now.keys() if flat.get(k) != now.get(k))
        raise UserError(
            "--out", out, f"holds a run with other {', '.join(differing)}: choose another folder or remove it"
        )


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError("--out", out, "another process is training there") from error
        yield


def _past(logs: Path) -> History:
    """The metrics of earlier attempts."""
    history = History()
    attempts = sorted(logs.glob("attempt-*.jsonl"), key=lambda p: int(p.stem.partition("-")[2]))
    for attempt in attempts:
        for step, data in MetricsTail(attempt).new():
            history.add(step, data)
    return history


def _last_line(log: Path) -> str:
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1][:300] if lines else "it said nothing"


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
