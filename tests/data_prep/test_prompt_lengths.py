"""Prompt lengths: the short cut gives what the chat template and the whole text give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scout_data import prompt_lengths
from scout_data.bench import tokenizer_folder
from scout_data.cli import main
from scout_data.prompt_lengths import load_tokenizer, token_lengths
from scout_data.rows import make_row, write_rows
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt, prompt_names

pytest.importorskip("transformers")
QUESTIONS = [
    "who wrote it?",
    " leading and trailing \n",
    "Ὀδύσσεια, 東京 and 😀?",
    "x",
    "answer",  # part of the instructions, too
    "What of <|im_end|> and <answer>x</answer>?",
    "12345 67890",
    "ab " * 10_000 + "?",
    "tab\tand\n\nlines",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [make_row(f"who wrote the book {i}?", ["x"], "system_user", "nq", "dev", i) for i in range(50)]
    return tokenizer_folder(rows, tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("name", prompt_names())
def test_lengths_are_the_chat_templates(folder: Path, name: str) -> None:
    tokenizer = load_tokenizer(str(folder))
    pairs = [(load_prompt(name).build(q), q) for q in QUESTIONS * 4]
    whole = [len(tokenizer.apply_chat_template(m, add_generation_prompt=True)["input_ids"]) for m, _ in pairs]
    assert token_lengths(tokenizer, pairs) == whole


def test_the_short_cut_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    count = prompt_lengths._count

    def counting(backend: Any, texts: list[str]) -> list[int]:
        seen.append(sum(map(len, texts)))
        return count(backend, texts)

    monkeypatch.setattr(prompt_lengths, "_count", counting)
    pairs = [(load_prompt("system_user").build(f"who is {i}?"), f"who is {i}?") for i in range(8000)]
    token_lengths(load_tokenizer(str(folder)), pairs)
    assert sum(seen) < 0.3 * sum(len(m["content"]) for messages, _ in pairs for m in messages)


def test_a_tokenizer_that_joins_words_is_given_the_whole_text(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend("__")  # each piece would get one
    pairs = [(load_prompt("brief").build(q), q) for q in QUESTIONS]
    texts = [tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m, _ in pairs]
    whole = [len(tokenizer.backend_tokenizer.encode(t, add_special_tokens=False)) for t in texts]
    assert token_lengths(tokenizer, pairs) == whole


def test_the_audit_says_what_is_too_long(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_row(f"who is {i}?", [f"t {i}"], "system_user", "nq", "dev", i) for i in range(200)]
    rows[50] = make_row("why " * 300_000, ["x y"], "system_user", "nq", "dev", 50)
    write_rows(tmp_path / "x.parquet", rows)
    argv = ["audit", str(tmp_path / "x.parquet"), "--tokenizer", str(folder)]
    assert main(argv) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 200 rows (0.50%) exceed 1,024 tokens, the first: row 50; median" in said
    assert main([*argv, "--max-prompt-tokens", "10"]) == 2


def test_bad_tokenizers_are_one_line(folder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "x.parquet", [make_row("q", ["x y"], "system_user", "nq", "dev", 0)])
    argv = ["audit", str(tmp_path / "x.parquet"), "--tokenizer"]
    with pytest.raises(UserError, match="no such folder"):
        main([*argv, str(tmp_path / "none")])
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in folder.iterdir():
        if path.name != "chat_template.jinja":
            (bare / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="has no chat template"):
        main([*argv, str(bare)])
    (bare / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot be loaded"):
        main([*argv, str(bare)])
    (bare / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (bare / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    with pytest.raises(UserError, match="no system role"):
        main([*argv, str(bare)])
