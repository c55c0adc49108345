"""A file that `scout data audit` refused is not trained on, until it is mended or the finding is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_data.cli import main
from scout_data.rows import make_row, write_rows
from scout_protocol.errors import UserError
from scout_train.checks import check_rows


def test_a_refused_file_is_not_trained_on(tmp_path: Path, compose: Callable[..., Any]) -> None:
    config = compose("grpo")
    path, mixed = tmp_path / "blocks.parquet", tmp_path / "mixed.parquet"
    sources = ["nq"] * 300 + ["hotpotqa"] * 300
    rows = [make_row(f"is it {i}?", [f"t {i}"], "system_user", s, "train", i) for i, s in enumerate(sources)]
    write_rows(path, rows)
    check_rows("--train", str(path), 8, config)  # never audited
    assert main(["audit", str(path)]) == 2
    with pytest.raises(UserError, match=r"--train .*order by data_source: 2 runs.*scout data mix"):
        check_rows("--train", str(path), 8, config)
    assert main(["mix", "--input", str(path), "--output", str(mixed)]) == 0
    assert main(["audit", str(mixed)]) == 0
    check_rows("--train", str(mixed), 8, config)
    assert main(["audit", str(path), "--allow", "order by data_source"]) == 0  # 600 rows: all are seen
    check_rows("--train", str(path), 8, config)
