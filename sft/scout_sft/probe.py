"""Rollouts of a checkpoint while it trains: a process of its own, so that the trainer's memory stays its own.

    python -m scout_sft.probe JOB.json

JOB.json: ``{"checkpoint", "start_model", "hf", "lora", "rows", "sampling", "result", "parent"}``. The
figures, or the one line of a wrong input, go to ``result``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_sft.run_folder import replace
from scout_sft.sampling import SamplingSettings
from scout_sft.verl_config import TrainSettings

NAMES = ("format_adherence", "searching_share", "pass_at_1", "pass_at_k", "mixed_group_share", "entropy_nats")


def sampling_of(settings: TrainSettings) -> SamplingSettings:
    """The probe's part of a warm-up's settings."""
    return SamplingSettings(
        server=settings.server,
        tools_token_env=settings.tools_token_env,
        dialect=settings.dialect,
        samples=settings.probe_samples,
        limit=settings.probe_limit,
        max_turns=settings.probe_max_turns,
        max_turn_tokens=settings.probe_max_turn_tokens,
        max_response_tokens=settings.probe_max_response_tokens,
        max_obs_tokens=settings.max_obs_tokens,
        max_model_len=settings.max_length + settings.probe_max_response_tokens,
        threads=settings.threads,
        device=settings.device,
        seed=settings.seed,
    )


def probe(checkpoint: Path, start_model: Path, out: Path, settings: TrainSettings) -> dict[str, Any]:
    """Figures of the checkpoint's rollouts on ``settings.probe_rows``.

    Raises:
        UserError: what the sampling refuses, or it failed.
    """
    folder = out / "probe"
    folder.mkdir(parents=True, exist_ok=True)
    job, result = folder / "job.json", folder / "result.json"
    result.unlink(missing_ok=True)
    replace(
        job,
        json.dumps(
            {
                "checkpoint": str(checkpoint),
                "start_model": str(start_model),
                "hf": str(folder / "hf"),
                "lora": settings.lora,
                "rows": settings.probe_rows,
                "sampling": asdict(sampling_of(settings)),
                "result": str(result),
                "parent": os.getpid(),
            }
        ),
    )
    env = {**os.environ, "OMP_NUM_THREADS": str(settings.threads), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "scout_sft.probe", str(job)]
    with (folder / "log").open("wb") as log:
        done = subprocess.run(  # noqa: S603 - our own module
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    if not result.is_file():
        raise UserError("the probe", f"exit status {done.returncode}", f"see {folder / 'log'}")
    told: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "error" in told:
        field, value, remedy = told["error"]
        remedy += "; the checkpoint is kept, the same command goes on from it"
        raise UserError(field, value, remedy)
    return told


def main(argv: list[str]) -> int:
    """Export, sample, write the figures."""
    from scout_sft.worker import die_with_parent

    job = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    die_with_parent(job["parent"])
    told: dict[str, Any]
    try:
        told = _figures(job)
    except UserError as error:
        told = {"error": [error.field, str(error.value), error.remedy]}
    replace(Path(job["result"]), json.dumps(told) + "\n")
    return 2 if "error" in told else 0


def _figures(job: dict[str, Any]) -> dict[str, Any]:
    from scout_data.rows import read_rows
    from scout_protocol.dialect import get_dialect
    from scout_sft.export import export_checkpoint
    from scout_sft.rollouts import figures
    from scout_sft.sampling import sample_groups

    lora = tuple(job["lora"]) if job["lora"] else None
    export_checkpoint(Path(job["checkpoint"]), Path(job["start_model"]), Path(job["hf"]), lora)
    settings = SamplingSettings(**job["sampling"])
    groups, lost = sample_groups(read_rows(job["rows"]), f"hf:{job['hf']}", settings, stage="probe")
    found = figures(groups, get_dialect(settings.dialect), batch=len(groups))
    return {name: found[name] for name in NAMES} | {"rollouts": found["rollouts"], "lost": lost}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
