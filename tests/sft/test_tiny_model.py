"""The tokenizer loses nothing, its markers are tokens, and everything repeats for a seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scout_protocol.dialect import REACT, SEARCH_R1
from scout_protocol.errors import UserError
from scout_sft.tiny_model import TinySpec, init_model, read_corpus
from scout_sft.tokenizer import SPECIAL, build_tokenizer, single_token_share

# Lone surrogates are not text: they have no UTF-8.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PIECE = st.one_of(
    TEXT,
    st.sampled_from(
        [
            *SEARCH_R1.markers,
            *SPECIAL,
            " ",
            "\n\n",
            "\r\n",
            "\t ",
            "don't",
            "e\u0301",
            "漢字かな",
            "🏳️‍🌈👩‍👩‍👧",
            "\ufeff",
            "\x00",
        ]
    ),
)


@given(st.lists(PIECE, max_size=12).map("".join))
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < len(tokenizer) for i in ids)


def test_markers_are_ordinary_tokens_and_control_tokens_are_special(tokenizer: Any) -> None:
    for marker in SEARCH_R1.markers:
        ids = tokenizer.encode(f"x{marker}y", add_special_tokens=False)
        assert ids[1] == tokenizer.convert_tokens_to_ids(marker)
        assert tokenizer.decode(ids, skip_special_tokens=True) == f"x{marker}y"
    ids = tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"


def test_markers_keep_the_spaces_beside_them(tokenizer: Any) -> None:
    tokens = tokenizer.tokenize("<search> Mara Velton </search>")
    assert tokens == ["<search>", "ĠMara", "ĠVelton", "Ġ", "</search>"]


def test_chat_template_is_chatml(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": " a\n"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert (
        text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_every_part_of_a_name_is_one_token(tokenizer: Any, mini: Any) -> None:
    one, words = single_token_share(tokenizer, ["Mara Velton", "Silver Falls", "Stone Bridge"])
    assert (one, words) == (6, 6)


def test_spans_encode_as_the_whole_does(tokenizer: Any, demos: Any) -> None:
    for demo in demos:
        whole = tokenizer.encode(demo.chosen, add_special_tokens=False)
        spans = [tokenizer.encode(turn.text, add_special_tokens=False) for turn in demo.turns]
        assert [i for span in spans for i in span] == whole


def test_other_dialects_get_their_own_markers() -> None:
    tokenizer = build_tokenizer(["<call:search> x </call:search>"], REACT, 300)
    assert len(tokenizer.encode("<call:search>", add_special_tokens=False)) == 1
    assert len(tokenizer.encode("<search>", add_special_tokens=False)) > 1


_BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import make_mini
from scout_sft.tiny_model import TinySpec, init_model
mini = make_mini()
spec = TinySpec(vocab=500, min_frequency=2, hidden=16, layers=1, heads=2, seed=int(sys.argv[3]))
init_model(list(mini.documents.values()), mini.rows, Path(sys.argv[2]), spec)
"""


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_a_seed_gives_the_same_bytes_in_another_process(tmp_path: Path, mini: Any) -> None:
    documents = list(mini.documents.values())
    for name, seed in (("a", 3), ("c", 4)):
        spec = TinySpec(vocab=500, min_frequency=2, hidden=16, layers=1, heads=2, seed=seed)
        init_model(documents, mini.rows, tmp_path / name, spec)
    there = [sys.executable, "-c", _BUILD, str(Path(__file__).parent), str(tmp_path / "b"), "3"]
    subprocess.run(there, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True, timeout=120)
    a, b, c = (_digests(tmp_path / name) for name in "abc")
    assert a == b
    assert a["tokenizer.json"] == c["tokenizer.json"]
    assert a["model.safetensors"] != c["model.safetensors"]


def test_wrong_inputs_are_one_line_and_leave_nothing(tmp_path: Path, mini: Any) -> None:
    documents = list(mini.documents.values())
    with pytest.raises(UserError, match="--vocab: 200"):
        init_model(documents, mini.rows, tmp_path / "m", TinySpec(vocab=200))
    for wrong in ({"hidden": 30, "heads": 4}, {"hidden": 12, "heads": 4}, {"layers": 0}, {"seed": -1}):
        with pytest.raises(UserError):
            TinySpec(**wrong)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match="exists already"):
        init_model(documents, mini.rows, tmp_path / "m", TinySpec())


def test_made_already_from_the_same_inputs_it_is_left_alone(tmp_path: Path, mini: Any) -> None:
    documents, out = list(mini.documents.values()), tmp_path / "m"
    spec = TinySpec(vocab=400, hidden=16, layers=1, heads=2)
    facts = init_model(documents, mini.rows, out, spec)
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert init_model(documents, mini.rows, out, spec) == facts
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    for rows, other in (
        (mini.rows[1:], spec),
        (mini.rows, TinySpec(vocab=400, hidden=32, layers=1, heads=2)),
    ):
        with pytest.raises(UserError, match="made from other inputs"):
            init_model(documents, rows, out, other)


def test_a_damaged_corpus_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": "1", "title": "a", "text": "b"}\n\n{"id": "2", "title": "a"}\n')
    with pytest.raises(UserError, match=r"docs\.jsonl:3"):
        read_corpus(path)
    path.write_text("\n")
    with pytest.raises(UserError, match="holds no document"):
        read_corpus(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        read_corpus(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_corpus(tmp_path / "absent.jsonl")
