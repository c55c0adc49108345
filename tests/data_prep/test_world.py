"""The made-up world: what its documents say must answer its questions, and training must not leak."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scout_data.rows import read_rows
from scout_data.world import HOPS, RELATIONS, Question, World, make_world
from scout_data.world_cli import main
from scout_protocol.errors import UserError

# A reader of the documents that shares nothing with the generator: what each sentence says.
SENTENCES = {
    "birthplace": r"^(.+) was born in (.+?) and works for",
    "employer": r"^(.+) was born in .+ and works for (.+)\.$",
    "river": r"^(.+) is a town on the river (.+?)\.",
    "mayor": r"The mayor of (.+) is (.+)\.$",
    "home town": r"^(.+) is a firm based in (.+?)\.",
    "founder": r"^(.+) is a firm .* It was founded by (.+)\.$",
    "author": r"^(.+) is a novel written by (.+?)\.",
    "year": r"^(.+) is a novel .* It was published in (\d{4})\.$",
}
# How a question's last hop is worded, again independently.
LAST = {
    "birthplace": r"^Where was (.+) born\?$",
    "employer": r"^Which firm does (.+) work for\?$",
    "river": r"^Which river flows through (.+)\?$",
    "mayor": r"^Who is the mayor of (.+)\?$",
    "home town": r"^Where is (.+) based\?$",
    "founder": r"^Who founded (.+)\?$",
    "author": r"^Who wrote (.+)\?$",
    "year": r"^In which year was (.+) published\?$",
}


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(seed=3)


def _facts(world: World) -> dict[tuple[str, str], str]:
    facts = {}
    for document in world.documents():
        for noun, pattern in SENTENCES.items():
            match = re.search(pattern, document["text"])
            if match:
                assert match.group(1) == document["title"]
                facts[noun, document["title"]] = match.group(2)
    return facts


def _answer(question: str, facts: dict[tuple[str, str], str]) -> tuple[str, int]:
    """Answer by reading documents: peel the wording from the outside, then look up from the inside."""
    for noun, pattern in LAST.items():
        match = re.match(pattern, question)
        if match:
            nouns, phrase = [noun], match.group(1)
            while inner := re.match(r"the ([a-z ]+?) of (.+)$", phrase):
                nouns.append(inner.group(1))
                phrase = inner.group(2)
            for step in reversed(nouns):
                phrase = facts[step, phrase]
            return phrase, len(nouns)
    raise AssertionError(f"no wording matches {question!r}")


@pytest.mark.parametrize("hops", HOPS)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_documents_answer_the_questions(world: World, split: str, hops: int) -> None:
    facts = _facts(world)
    questions = world.questions(split, hops)
    assert len(questions) > 500
    for question in questions:
        assert _answer(question.text, facts) == (question.answer, hops)


def test_splits_share_no_entity_and_no_answer(world: World) -> None:
    def entities(questions: list[Question]) -> set[str]:
        return {name for q in questions for name in (q.start, *q.chain) if not name.isdigit()}

    seen = {s: entities([q for h in HOPS for q in world.questions(s, h)]) for s in ("train", "held_out")}
    assert len(seen["train"]) > 900 and len(seen["held_out"]) > 300
    assert not seen["train"] & seen["held_out"]


def test_plan_reads_the_page_it_names(world: World) -> None:
    texts = {d["title"]: d["text"] for d in world.documents()}
    for question in world.questions("held_out", 3)[:200]:
        for step in question.oracle():
            assert step["result"] in texts[step["query"]]
            assert step["result"] in step["conclude"]
        assert question.oracle()[-1]["result"] == question.answer


def test_held_out_answers_cannot_be_guessed(world: World) -> None:
    """The most frequent held-out answer answers fewer than 2 % of the questions of any length."""
    for hops in HOPS:
        answers = Counter(q.answer for q in world.sample_questions("held_out", hops, 100, 0))
        assert answers.most_common(1)[0][1] <= 5
        assert len(answers) >= 60


def test_sampling_is_balanced_over_relations(world: World) -> None:
    picked = world.sample_questions("train", 1, 80, seed=1)
    assert Counter(q.relations[0].name for q in picked) == {r.name: 10 for r in RELATIONS}
    assert len({q.text for q in picked}) == 80


def test_no_chain_returns_to_where_it_was(world: World) -> None:
    for question in world.questions("train", 3):
        visited = (question.start, *question.chain)
        assert len(set(visited)) == len(visited)


def test_too_many_questions_is_an_error(world: World) -> None:
    with pytest.raises(UserError, match="1-hop questions: 100000: the held_out split has 700"):
        world.sample_questions("held_out", 1, 100_000, 0)


def test_files_repeat_byte_for_byte(tmp_path: Path) -> None:
    small = ["--sft", "8,8,8", "--train", "8,8,8", "--held-out", "4,4,4"]
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert main(["make", "--out", str(tmp_path / name), "--seed", seed, *small]) == 0
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert "corpus.jsonl" in files and "held_out.parquet" in files and "held_out.manifest.json" in files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a/corpus.jsonl").read_bytes() != (tmp_path / "c/corpus.jsonl").read_bytes()


def test_rows_carry_what_the_other_rooms_read(tmp_path: Path) -> None:
    main(["make", "--out", str(tmp_path), "--sft", "8,8,8", "--train", "8,8,8", "--held-out", "4,4,4"])
    rows = read_rows(tmp_path / "held_out.parquet")
    assert [r.extra_info["hops"] for r in rows] == [1] * 4 + [2] * 4 + [3] * 4
    for row in rows:
        assert [s["query"] for s in row.extra_info["oracle"]] == list(row.extra_info["supporting_titles"])
        assert row.question in row.prompt[-1]["content"]
        assert row.reward_model["ground_truth"]["target"] == row.golden_answers


@pytest.mark.parametrize("text", ["1,2", "a,b,c", "-1,2,3", "0,0,0"])
def test_bad_counts_are_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["make", "--out", str(tmp_path / "w"), f"--train={text}"])
    assert stop.value.code == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """No file may grow beyond 10 kB, which the kernel refuses as it does on a full disk; then it may."""
    code = (
        "import resource, sys; from scout_cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)); sys.exit(main(sys.argv[1:]))"
    )
    command = ["world", "make", "--out", str(tmp_path / "w")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    limited = [sys.executable, "-c", code, *command]
    done = subprocess.run(limited, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "free some disk space" in done.stderr
    assert list((tmp_path / "w").iterdir()) == []
    whole = subprocess.run([sys.executable, "-m", "scout_cli.main", *command], env=env, capture_output=True)
    assert whole.returncode == 0 and (tmp_path / "w" / "corpus.jsonl").stat().st_size > 10_000
