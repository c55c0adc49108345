"""Has the warm-up been judged? The verdict of `scout sft readiness`, read from its file."""

from __future__ import annotations

import json
from pathlib import Path

from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, ok, refuse, warn

SCHEMA = "scout.readiness/1"
_SAYS = {
    "more_sft": "the warm-up is too weak for RL: train it longer (scout sft train), then judge it again",
    "too_far": "the warm-up went too far, RL has little left to explore: start from an earlier checkpoint",
}


def find(facts: Facts) -> Path | None:
    """The file that was named, else ``readiness.json`` in the model's folder or beside it."""
    if facts.readiness is not None:
        return facts.readiness
    places = (facts.model / "readiness.json", facts.model.resolve().parent / "readiness.json")
    return next((p for p in places if p.is_file()), None)


def readiness(facts: Facts) -> Finding:
    """Ready, or not judged at all, which is only worth a warning."""
    path = find(facts)
    if path is None:
        return warn(
            "readiness",
            "the model was not judged",
            "run scout sft readiness, and name its file with --readiness",
        )
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        schema, verdict = report["schema"], report["verdict"]
    except OSError as error:
        return refuse("readiness", f"{path}: {error.strerror}", "name a file of scout sft readiness --out")
    except (ValueError, KeyError, TypeError) as error:
        return refuse("readiness", f"{path}: {error!r}", "is no report of scout sft readiness: make it again")
    if schema != SCHEMA:
        return refuse("readiness", f"{path}: schema {schema}", f"{SCHEMA} is read here: make it again")
    judged = str(report.get("policy", "")).partition(":")[2]
    if judged and Path(judged).resolve() != facts.model.resolve():
        return warn(
            "readiness", f"{path} judged {judged}", f"not {facts.model}: run scout sft readiness on it"
        )
    if verdict == "ready":
        return ok("readiness", f"ready, by {path}")
    if verdict == "more_sft":
        return refuse("readiness", f"{path} says {verdict}", _SAYS[verdict])
    return warn("readiness", f"{path} says {verdict}", _SAYS.get(verdict, "is no verdict that is known here"))
