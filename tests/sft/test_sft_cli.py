"""`scout sft …` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scout_cli.main import main
from scout_data.rows import write_rows
from scout_sft.rows import read_demos


@pytest.fixture
def files(mini: Any, tmp_path: Path) -> tuple[Path, Path]:
    corpus, rows = tmp_path / "docs.jsonl", tmp_path / "rows.parquet"
    lines = (json.dumps({"id": d.id, "title": d.title, "text": d.text}) for d in mini.documents.values())
    corpus.write_text("\n".join(lines), encoding="utf-8")
    write_rows(rows, mini.rows)
    return corpus, rows


def test_help_is_quick() -> None:
    start = time.process_time()
    for command in ("init", "harvest", "train", "readiness"):
        with pytest.raises(SystemExit) as caught:
            main(["sft", command, "--help"])
        assert caught.value.code == 0
    assert time.process_time() - start < 1.0
    heavy = "{'torch', 'verl', 'pyarrow', 'transformers'}"
    code = f"import sys, scout_sft.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_init_and_harvest(files: tuple[Path, Path], server_url: str, tmp_path: Path, capsys: Any) -> None:
    corpus, rows = map(str, files)
    sizes = ["--hidden", "16", "--layers", "1", "--heads", "2", "--vocab", "400", "--min-frequency", "2"]
    assert (
        main(["sft", "init", "--corpus", corpus, "--rows", rows, "--out", str(tmp_path / "m"), *sizes]) == 0
    )
    assert "parameters, 400 tokens" in capsys.readouterr().out
    out = str(tmp_path / "d.parquet")
    assert main(["sft", "harvest", "--rows", rows, "--server", server_url, "--out", out, "--limit", "6"]) == 0
    assert "6 demonstrations (2 stop too early)" in capsys.readouterr().out
    assert len(read_demos(out)) == 6


def test_wrong_inputs_are_one_line_with_status_2(
    files: tuple[Path, Path], tmp_path: Path, capsys: Any
) -> None:
    corpus, rows = map(str, files)
    out = ["--out", str(tmp_path / "out")]
    before = sorted(tmp_path.iterdir())
    wrong = [
        ["init", "--corpus", "absent.jsonl", "--rows", rows, *out],
        ["init", "--corpus", corpus, "--rows", corpus, *out],
        ["init", "--corpus", corpus, "--rows", rows, "--hidden", "33", *out],
        ["harvest", "--rows", "absent.parquet", *out],
        ["harvest", "--rows", rows, "--early-stop-share", "2", *out],
        ["train", "--model", str(tmp_path), "--demos", rows, "--steps", "1", *out],
        ["train", "--model", str(tmp_path), "--demos", corpus, "--steps", "0", *out],
    ]
    for argv in wrong:
        assert main(["sft", *argv]) == 2, argv
        error = capsys.readouterr().err
        assert error.startswith("scout sft: ") and error.count("\n") == 1, error
    assert sorted(tmp_path.iterdir()) == before


def test_init_on_a_full_disk_is_one_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    import resource

    corpus, rows = map(str, files)
    out = tmp_path / "full" / "m"
    sizes = ["--hidden", "64", "--layers", "1", "--heads", "2", "--vocab", "400", "--min-frequency", "2"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scout_cli.main",
            *("sft", "init", "--corpus", corpus, "--rows", rows),
            "--out",
            str(out),
            *sizes,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert list(out.parent.iterdir()) == []
