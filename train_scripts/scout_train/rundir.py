"""The folder of a run: one writer at a time, and fit to go on from the last checkpoint."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train import resume

# What may differ between the two halves of an interrupted run.
FREE_TO_CHANGE = (
    "trainer.total_training_steps",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.default_local_dir",
    "scout.tools",
    "scout.run",
    "scout.cluster",
    "scout.sampler",
    "ray_kwargs",
)


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """The run's folder, for us alone.

    Raises:
        UserError: the folder cannot be used, or another run has it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("w")
    except OSError as error:
        raise UserError("--out", out, f"{error.strerror}: choose a writable folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                "--out", out, "another run is writing there: wait, or choose another folder"
            ) from error
        yield


def go_on_from(config: Any, out: Path) -> int:
    """The step that a run in this folder goes on from; 0: the beginning.

    Raises:
        UserError: the folder holds a run with other settings.
    """
    import yaml

    saved = out / "config.yaml"
    step = resume.repair(out / "ckpt")
    if step and saved.is_file():
        before = yaml.safe_load(saved.read_text(encoding="utf-8"))
        changed = resume.changed_keys(before, _plain(config), FREE_TO_CHANGE)
        if changed:
            raise UserError(
                "--out", out, f"was made with other settings ({', '.join(changed[:5])}): choose another"
            )
    return step


def prepare(config: Any, out: Path, step: int) -> None:
    """Make the run's folder fit to go on from ``step``."""
    import yaml

    resume.trim(out / "metrics.jsonl", step)
    resume.trim(out / "traces.jsonl", step)
    told = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
    resume.replace_text(out / "config.yaml", told)


def _plain(config: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True, throw_on_missing=False)


def finished(out: Path, steps: int) -> int:
    """Steps of an earlier run that reached at least ``steps`` and exported its model; else 0."""
    marker = out / "finished"
    done = int(marker.read_text()) if marker.is_file() else 0
    return done if done >= steps and (out / "hf" / "config.json").is_file() else 0
