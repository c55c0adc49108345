"""bm25s on the same passages and questions, for the choice between the two (docs/adr/0002)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_tools.bench.processes import private_mb
from scout_tools.stopwords import STOP_WORDS

_WORD = re.compile(r"\w+")


def measure(work: Path, corpus: Path, asked: list[str]) -> dict[str, Any]:
    """Build and search, each in a process of its own; with numba where that is installed.

    Raises:
        UserError: bm25s is not installed, or fails.
    """
    if importlib.util.find_spec("bm25s") is None:
        raise UserError("--bm25s", "not installed", "pip install bm25s (and numba, for its fast search)")
    (work / "questions.json").write_text(json.dumps(asked))
    facts: dict[str, Any] = {"numba": importlib.util.find_spec("numba") is not None}
    for step in ("build", "search"):
        command = [sys.executable, "-m", __name__, step, str(work), str(corpus)]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  # our own command
        if done.returncode:
            raise UserError("bm25s", done.stderr.strip()[-300:], "failed")
        facts |= json.loads(done.stdout.splitlines()[-1])
    print("bm25s      " + ", ".join(f"{name} {value:.2f}" for name, value in facts.items()))
    return facts


def _terms(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _build(work: Path, corpus: Path) -> dict[str, float]:
    import resource

    import bm25s

    start = time.monotonic()
    with corpus.open(encoding="utf-8") as file:
        rows = (json.loads(line) for line in file)
        tokens = [_terms(f"{row['title']} {row['text']}") for row in rows]
    retriever = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    retriever.index(tokens, show_progress=False)
    retriever.save(str(work / "bm25s"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"build_s": time.monotonic() - start, "build_peak_mb": peak}


def _search(work: Path) -> dict[str, float]:
    import bm25s

    before, start = private_mb(os.getpid()), time.monotonic()
    retriever = bm25s.BM25.load(str(work / "bm25s"))
    if importlib.util.find_spec("numba") is not None:
        retriever.backend = "numba"
        retriever.activate_numba_scorer()
    asked = json.loads((work / "questions.json").read_text())
    queries = [[term for term in dict.fromkeys(_terms(q)) if term not in STOP_WORDS] for q in asked]

    def retrieve(query: list[str]) -> float:
        begin = time.thread_time()
        retriever.retrieve([query], k=3, show_progress=False, n_threads=1)
        return (time.thread_time() - begin) * 1000

    retrieve(queries[0])
    start_s = time.monotonic() - start
    times = sorted(min(retrieve(query) for _ in range(3)) for query in queries)
    return {
        "start_s": start_s,
        "private_mb": private_mb(os.getpid()) - before,
        "mean_ms": sum(times) / len(times),
        "p99_ms": times[int(len(times) * 0.99)],
    }


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    print(json.dumps(_build(folder, Path(sys.argv[3])) if sys.argv[1] == "build" else _search(folder)))
