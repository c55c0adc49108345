"""A tool server that asks for a bearer token: harvest, readiness and probe hold it, by its variable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sft_processes import tool_server

from scout_cli.main import main
from scout_data.rows import write_rows

TOKEN = "tools-of-the-miniature-world-0001"  # pragma: allowlist secret


@pytest.mark.timeout(180)
def test_every_caller_holds_the_token_or_says_what_is_missing(
    mini: Any,
    mini_index: Path,
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MINI_TOKEN", TOKEN)
    rows = tmp_path / "rows.parquet"
    write_rows(rows, mini.rows)
    readiness = ["sft", "readiness", "--policy", "oracle", "--samples", "1", "--rows", str(rows)]
    few = ["--probe-samples=1", "--probe-limit=2", "--probe-max-turn-tokens=8"]
    demos, probed = tmp_path / "demos.parquet", tmp_path / "probed"
    train = [
        "sft",
        "train",
        f"--model={model_dir}",
        f"--demos={demos}",
        "--steps=2",
        "--batch=4",
        "--save-every=2",
    ]
    train += ["--max-length=512", "--val-share=0", f"--probe-rows={tmp_path / 'held.parquet'}", *few]
    train += ["--probe-max-response-tokens=32"]
    write_rows(tmp_path / "held.parquet", mini.rows[12:])
    write_rows(tmp_path / "shown.parquet", mini.rows[:12])
    make = ["sft", "harvest", "--rows", str(tmp_path / "shown.parquet"), "--out", str(demos)]
    with tool_server(mini_index, tmp_path, "--token-env", "MINI_TOKEN") as url:
        where = ["--server", url]
        named = [*where, "--tools-token-env", "MINI_TOKEN"]
        assert main([*make, *where]) == 2
        assert "--tools-token-env" in capsys.readouterr().err
        assert main([*make, *named]) == 0
        assert main([*readiness, *where, "--out", str(tmp_path / "r.json")]) == 2
        assert "--tools-token-env" in capsys.readouterr().err and not (tmp_path / "r.json").exists()
        main([*readiness, *named, "--out", str(tmp_path / "r.json")])
        assert json.loads((tmp_path / "r.json").read_text())["figures"]["pass_at_1"] == 1.0
        assert main([*train, *where, f"--out={tmp_path / 'none'}"]) == 2
        assert "--tools-token-env" in capsys.readouterr().err
        assert main([*train, *named, f"--out={probed}"]) == 0
    assert json.loads((probed / "probes.jsonl").read_text().splitlines()[0])["rollouts"] == 2
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert not [p for p in written if TOKEN.encode() in p.read_bytes()], "no token in a file"
