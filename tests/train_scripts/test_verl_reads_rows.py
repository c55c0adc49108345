"""verl's own data set sees the same in a file that went through `scout data` as in Search-R1's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scout_data.bench import tokenizer_folder
from scout_data.cli import main
from scout_data.rows import read_rows

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
PUBLISHED = SHARED / "nq" / "search_r1_nq_search_test.parquet"


def seen_by_verl(path: Path, tokenizer: Any, cache: Path) -> list[dict[str, Any]]:
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = {"max_prompt_length": 2048, "truncation": "error", "cache_dir": str(cache)}
    data = RLHFDataset(data_files=[str(path)], tokenizer=tokenizer, config=OmegaConf.create(config))
    items = [data[i] for i in range(0, len(data), 97)]
    assert len(data) == 3610
    return [{k: v for k, v in item.items() if k != "dummy_tensor"} for item in items]


@pytest.mark.slow
@pytest.mark.shared_data
def test_kept_rows_are_the_published_ones_and_ours_differ_in_the_prompt_alone(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    if not PUBLISHED.is_file():
        pytest.skip(f"{PUBLISHED} is absent")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(read_rows(PUBLISHED)[:200], tmp_path / "tok"))
    theirs = seen_by_verl(PUBLISHED, tokenizer, tmp_path / "a")
    paths = {}
    for prompt in ("keep", "system_user"):
        paths[prompt] = tmp_path / f"{prompt}.parquet"
        argv = ["rows", "--input", str(PUBLISHED), "--prompt", prompt, "--split", "test"]
        assert main([*argv, "--output", str(paths[prompt])]) == 0
    assert seen_by_verl(paths["keep"], tokenizer, tmp_path / "b") == theirs
    ours = seen_by_verl(paths["system_user"], tokenizer, tmp_path / "c")
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["raw_prompt"] != other["raw_prompt"]
        for key in ("question", "golden_answers", "data_source", "ability", "reward_model", "index"):
            assert mine[key] == other[key]
