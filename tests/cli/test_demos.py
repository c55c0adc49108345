"""`scout demos` on real HotpotQA questions, with a server of its own and with one that runs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from scout_cli.main import main
from scout_sft.rows import read_demos

REPO = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", REPO.parent / "shared" / "data"))
HOTPOT = SHARED / "hotpotqa" / "hotpot_dev_500.jsonl"


@pytest.mark.shared_data
@pytest.mark.skipif(not HOTPOT.exists(), reason="no HotpotQA file here")
@pytest.mark.timeout(240)
def test_real_questions_are_answered_in_context(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["demos", "--hotpot", str(HOTPOT), "--run", str(run), "--long-chain-repeat", "2"]) == 0
    told = capfd.readouterr().out
    shares = dict(re.findall(r"^(\w+): answer in the results of .* \(([\d.]+)%\)", told, re.MULTILINE))
    assert shares.keys() == {"golden", "keywords", "bridge"} and float(shares["golden"]) >= 65
    demos = read_demos(run / "demos.parquet")
    card = json.loads((run / "demos.parquet.card.json").read_text())
    assert set(card["searches"]) == {"1", "2", "3", "4", "5"} and card["copies_of_long_chains"] > 0
    assert sum(demo.query_reveals_answer for demo in demos) <= 0.2 * len(demos)
    # again: nothing is asked, the file is the same
    before = (run / "demos.parquet").read_bytes()
    assert main(["demos", "--hotpot", str(HOTPOT), "--run", str(run), "--long-chain-repeat", "2"]) == 0
    assert (run / "demos.parquet").read_bytes() == before
    assert "from an earlier run" in capfd.readouterr().out


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demos", "--hotpot", str(tmp_path / "x"), "--run", str(tmp_path / "r")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("scout demos: --hotpot: ") and error.count("\n") == 1
    assert not (tmp_path / "r").exists()
