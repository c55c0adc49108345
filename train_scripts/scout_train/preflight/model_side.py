"""The checks that need the tokenizer or the model, in a process of their own that gives its memory back.

``python -m scout_train.preflight.model_side FOLDER`` reads ``asked.json`` there and writes ``told.json``.
It runs beside the other checks: most of its time is importing torch and transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, Verdict, refuse

NAMES = ("prompts", "tokens", "tool-call", "rollout")


@dataclass
class Running:
    """The process, and where it writes."""

    process: subprocess.Popen[str]
    folder: Path

    def findings(self, timeout_s: float) -> list[Finding]:
        """What it found; a process that broke or hangs is a refusal that says so."""
        try:
            _, said = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.close()
            return [
                refuse(
                    "rollout",
                    f"no end after {timeout_s:.0f} s",
                    "is the tool server answering? --skip-preflight rollout",
                )
            ]
        told = self.folder / "told.json"
        if self.process.returncode or not told.is_file():
            last = (said.strip().splitlines() or ["no message"])[-1]
            return [
                refuse(
                    "rollout", f"the check itself ended with {self.process.returncode}: {last}", "see above"
                )
            ]
        return [
            Finding(f["name"], Verdict(f["verdict"]), f["found"], f["remedy"])
            for f in json.loads(told.read_text(encoding="utf-8"))
        ]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def start(facts: Facts, folder: Path, names: Sequence[str]) -> Running:
    """Start the process; ``folder`` is empty and the caller's to remove."""
    from omegaconf import OmegaConf

    OmegaConf.save(facts.config, folder / "config.yaml")
    asked = {
        "config": str(folder / "config.yaml"),
        "model": str(facts.model),
        "model_bytes": facts.model_bytes,
        "rows": str(facts.train),
        "tools": facts.tools,
        "names": list(names),
    }
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    env = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(facts.config.scout.cluster.torch_threads),
        "OMP_WAIT_POLICY": "passive",
        "CUDA_VISIBLE_DEVICES": "",  # the cards stay untouched
    }
    command = [sys.executable, "-m", "scout_train.preflight.model_side", str(folder)]
    process = subprocess.Popen(  # noqa: S603
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Running(process, folder)


def main(argv: list[str]) -> int:
    """Run the checks that were asked for, write what they found."""
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    from scout_data.rows import read_rows
    from scout_train.preflight import rollout, tokens

    folder = Path(argv[0])
    asked: dict[str, Any] = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    config, rows = OmegaConf.load(asked["config"]), read_rows(asked["rows"])
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    checks = {
        "prompts": lambda: tokens.prompts(config, tokenizer, rows),
        "tokens": lambda: tokens.tokens(config, tokenizer, rows),
        "tool-call": lambda: rollout.tool_call(config, tokenizer, rows, asked["tools"]),
        "rollout": lambda: rollout.rollout(
            config, tokenizer, rows, asked["tools"], asked["model"], asked["model_bytes"]
        ),
    }
    found: list[Finding] = []
    for name in asked["names"]:
        if name == "rollout" and any(f.verdict is Verdict.REFUSE for f in found):
            continue  # the model would only stumble over the same thing
        try:
            found.append(checks[name]())
        except UserError as error:
            found.append(refuse(name, f"{error.field}: {error.value}", error.remedy))
    (folder / "told.json").write_text(json.dumps([asdict(f) for f in found]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # torch's own shutdown takes a while and has nothing left to save
