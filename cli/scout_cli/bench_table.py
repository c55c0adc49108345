"""`python -m scout_cli.bench_table FOLDER`: a Markdown table of the quickstarts in a folder, one per seed.

Prints what was reached against the targets; exits 1 where one is missed.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError

STAGES = ("base", "sft", "grpo", "dapo")
# Targets of the made-up world, for every seed.
MIN_EM, MIN_GAIN, MIN_TWO_HOP, MAX_TWO_HOP_BEFORE, MAX_BLANK = 0.65, 0.2, 0.4, 0.05, 0.02


def read_seed(run: Path) -> dict[str, Any]:
    """The numbers of one quickstart.

    Raises:
        UserError: the run is not finished.
    """

    def summary(name: str) -> dict[str, Any]:
        path = run / "eval" / name / "summary.json"
        if not path.is_file():
            raise UserError("run", run, f"has no eval/{name}: run the quickstart there to its end")
        metrics: dict[str, Any] = json.loads(path.read_text())["metrics"]
        return metrics

    numbers: dict[str, Any] = {}
    for stage in STAGES:
        found = summary(stage)
        numbers[stage] = {
            "em": found["overall"]["em"]["mean"],
            "hops": {hops: part["em"]["mean"] for hops, part in found["by"]["hops"].items()},
            "searches": found["overall"]["searches"],
            "blank": summary(f"{stage}.blank")["overall"]["em"]["mean"],
            "shuffled": summary(f"{stage}.shuffled")["overall"]["em"]["mean"],
        }
    stamps = json.loads((run / "stages.json").read_text())
    numbers["wall_s"] = sum(s["wall_s"] for s in stamps.values())
    numbers["cpu_s"] = sum(s["cpu_s"] for s in stamps.values())
    for algo in ("grpo", "dapo"):
        lines = (run / algo / "metrics.jsonl").read_text().splitlines()
        numbers[f"{algo}_step_s"] = statistics.median(json.loads(line)["timing_s/step"] for line in lines)
    return numbers


def missed(n: dict[str, Any]) -> list[str]:
    """The targets that one seed's numbers do not reach."""
    sft, dapo = n["sft"], n["dapo"]
    checks = {
        f"EM after DAPO at least {MIN_EM}": dapo["em"] >= MIN_EM,
        f"at least {MIN_GAIN} above after SFT": dapo["em"] - sft["em"] >= MIN_GAIN,
        f"2-hop EM after SFT at most {MAX_TWO_HOP_BEFORE}": sft["hops"]["2"] <= MAX_TWO_HOP_BEFORE,
        f"2-hop EM after DAPO at least {MIN_TWO_HOP}": dapo["hops"]["2"] >= MIN_TWO_HOP,
        "searches per question rise": dapo["searches"] > sft["searches"],
        f"blanked EM below {MAX_BLANK}": all(n[stage]["blank"] < MAX_BLANK for stage in STAGES),
    }
    return [name for name, reached in checks.items() if not reached]


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Markdown: one line per seed and stage, then the seconds of each seed."""
    lines = [
        "| seed | stage | EM | 1 hop | 2 hops | 3 hops | searches | blanked | shuffled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for seed, n in runs.items():
        for stage in STAGES:
            s = n[stage]
            hops = " | ".join(f"{s['hops'][h]:.2f}" for h in ("1", "2", "3"))
            lines.append(
                f"| {seed} | {stage} | {s['em']:.3f} | {hops} | {s['searches']:.2f} "
                f"| {s['blank']:.3f} | {s['shuffled']:.3f} |"
            )
    lines += ["", "| seed | wall s | CPU s | GRPO s a step | DAPO s a step |", "|---|---|---|---|---|"]
    for seed, n in runs.items():
        steps = f"{n['grpo_step_s']:.1f} | {n['dapo_step_s']:.1f}"
        lines.append(f"| {seed} | {n['wall_s']:.0f} | {n['cpu_s']:.0f} | {steps} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print the table and what is missed; 1 where something is.

    Raises:
        UserError: no finished run below the folder.
    """
    if len(argv) != 1:
        raise UserError("arguments", argv, "give one folder, e.g. runs/bench")
    folders = sorted(p for p in Path(argv[0]).glob("seed*") if p.is_dir())
    if not folders:
        raise UserError("folder", argv[0], "holds no seed*: run make bench-learning")
    runs = {folder.name.removeprefix("seed"): read_seed(folder) for folder in folders}
    print(table(runs))
    misses = [f"seed {seed}: missed: {name}" for seed, n in runs.items() for name in missed(n)]
    print("\n" + ("\n".join(misses) if misses else f"every target reached for {len(runs)} seeds"))
    return 1 if misses else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"bench_table: {error}")
