"""The folder of a warm-up: whose run it is, one process at a time, files whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_sft.verl_config import TrainSettings

# Changing these does not change what is learned, so a run may go on with other values.
FREE = frozenset(
    {
        "nproc",
        "threads",
        "stall_timeout_s",
        "platform_module",
        "external_lib",
        "save_every",
        "server",
        "tools_token_env",
    }
)


def fingerprint(model: Path, demos: Path, settings: TrainSettings) -> dict[str, Any]:
    """What tells one run from another: settings, start model, demonstrations."""
    chosen = {k: v for k, v in asdict(settings).items() if k not in FREE}
    return {
        "settings": json.loads(json.dumps(chosen)),
        "model": str(model),
        "model_config_sha256": hashlib.sha256((model / "config.json").read_bytes()).hexdigest(),
        "demos_sha256": hashlib.sha256(demos.read_bytes()).hexdigest(),
    }


def claim(out: Path, mark: dict[str, Any]) -> None:
    """Write down what this folder is a run of, or check that it is the same run.

    Raises:
        UserError: it is another one.
    """
    file = out / "run.json"
    if not file.exists():
        replace(file, json.dumps(mark, indent=1) + "\n")
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
def only_one(out: Path) -> Iterator[None]:
    """The folder for this process alone.

    Raises:
        UserError: another process trains there.
    """
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError("--out", out, "another process is training there") from error
        yield


def replace(path: Path, text: str) -> None:
    """Write a text file; a reader sees the old one or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
