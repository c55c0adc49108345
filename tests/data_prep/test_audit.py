"""The audit: each finding is seen where it is, and not where it is not; the verdict is the exit status."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scout_data.audit import audit, refusal
from scout_data.audit_order import block_finding, expected_runs, runs, shares_along, window_finding
from scout_data.audit_prompts import example_answers
from scout_data.audit_text import wins
from scout_data.cli import main
from scout_data.findings import Audit, AuditSettings, Finding, Verdict
from scout_data.language import language_of
from scout_data.rows import make_row, write_rows
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt, prompt_names
from scout_protocol.records import RLRow


@pytest.mark.parametrize("values", ["aab", "aabbc", "aaabb", "abcd", "aaaa", "ab"])
def test_expected_runs_are_the_mean_over_all_orders(values: str) -> None:
    found = [runs(order)[0] for order in itertools.permutations(values)]
    mean, deviation = expected_runs(list(Counter(values).values()))
    assert mean == pytest.approx(sum(found) / len(found))
    assert deviation**2 == pytest.approx(sum((f - mean) ** 2 for f in found) / len(found))


def test_runs() -> None:
    assert runs([]) == (0, 0)
    assert runs("aabbba") == (3, 3)


BLOCKS = ["nq"] * 7917 + ["hotpotqa"] * 7348  # the published file, a tenth of it


def test_blocks_are_refused_and_mixed_files_are_not() -> None:
    found = block_finding("data_source", BLOCKS)
    assert (found.verdict, found.numbers["runs"], found.numbers["longest_run"]) == ("refuse", 2, 7917)
    assert found.numbers["runs_if_shuffled"] == pytest.approx(1 + 2 * 7917 * 7348 / 15265)
    first = window_finding("data_source", BLOCKS, 200, 8)
    assert first.verdict == "refuse" and first.numbers["first"] == {"nq": 1600}
    assert "hotpotqa 0.0% (file 48.1%)" in first.said
    for seed in range(5):
        mixed = random.Random(seed).sample(BLOCKS, len(BLOCKS))
        assert block_finding("data_source", mixed).verdict == "ok"
        assert window_finding("data_source", mixed, 200, 8).verdict == "ok"
    alternating = [name for pair in zip(BLOCKS[:7000], BLOCKS[-7000:], strict=True) for name in pair]
    assert block_finding("data_source", alternating).verdict == "ok"  # better than shuffled
    chunks = [name for i in range(150) for name in ["nq"] * 50 + ["hotpotqa"] * 50]
    assert block_finding("data_source", chunks).verdict == "refuse"
    assert window_finding("data_source", chunks, 200, 8).verdict == "ok"
    assert block_finding("data_source", BLOCKS, "curriculum by hops").verdict == "warn"


def test_a_slanted_start_is_warned_of() -> None:
    slanted = random.Random(0).sample(["nq"] * 1200 + ["hotpotqa"] * 400, 1600) + BLOCKS[::-1]
    assert window_finding("data_source", slanted, 200, 8).verdict == "warn"
    assert window_finding("data_source", slanted, 100_000, 8).verdict == "ok"  # the whole file is seen


def test_small_files_are_not_judged_by_chance() -> None:
    assert block_finding("hops", ["1", "1", "2", "2"]).verdict == "ok"
    assert window_finding("hops", ["1"] * 30 + ["2"] * 5, 2, 8).verdict == "ok"


def test_shares_along_the_file() -> None:
    along = shares_along(["a"] * 10 + ["b"] * 10, bins=4)
    assert along == {"a": [1, 1, 0, 0], "b": [0, 0, 1, 1]}
    many = shares_along([str(i) for i in range(20)], bins=2, top=2)
    assert many["others"] == pytest.approx([0.8, 1.0])


@pytest.mark.parametrize("answer", ["Paris", "<b>bold</b>", "1 < 2", "東京", "yes", "A.M."])
def test_answers_that_can_be_won(answer: str) -> None:
    assert wins(answer)


@pytest.mark.parametrize("answer", ["the", "?", "A", "", "x</answer>y", "<search>x</search>", "</think>"])
def test_answers_that_cannot(answer: str) -> None:
    assert not wins(answer)


def test_wins_is_what_the_reward_says() -> None:
    score = pytest.importorskip("scout_reward.exact_match").exact_match
    for answer in ("Paris", "the", "?", "A.M.", "an a", "…", "3", "The Who", "。"):
        assert wins(answer) is (score(answer, [answer]) == 1.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("between <answer> and </answer>. Question", []),
        ("inside <answer></answer>", []),
        ("write <answer>your answer</answer>", []),
        ("For example, <answer> Beijing </answer>.", ["Beijing"]),
        ("answer it, e.g. Paris", ["Paris"]),
        ("For instance: 'New York City'", ["New York City"]),
        ("search for example pages", []),
    ],
)
def test_example_answers(text: str, found: list[str]) -> None:
    assert example_answers(text) == found


def test_only_search_r1s_own_prompt_shows_an_answer() -> None:
    shown = {n: example_answers("\n".join(t for _, t in load_prompt(n).messages)) for n in prompt_names()}
    assert {name: found for name, found in shown.items() if found} == {"search_r1": ["Beijing"]}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("who got the first nobel prize in physics", "en"),
        ("Which mountains border the city where Alû was found?", "en"),
        ("谁是第一位获得诺贝尔物理学奖的人？", "zh"),
        ("東京はどこですか", "ja"),
        ("서울은 어디에 있습니까", "ko"),
        ("Кто написал «Войну и мир»?", "cyrillic"),
        ("Wer hat die Relativitätstheorie entdeckt und wann?", "de"),
        ("Quelle est la capitale du Sénégal et de la France?", "fr"),
        ("¿Quién es el autor de la novela?", "es"),
        ("12345?", "unclear"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text) == language


def made(n: int = 400) -> list[RLRow]:
    rows = [
        make_row(
            f"what is the {i} of it?",
            [f"thing {i}"],
            "system_user",
            "nq" if i % 2 else "hotpotqa",
            "train",
            i,
        )
        for i in range(n)
    ]
    return random.Random(0).sample(rows, n)


def found_in(tmp_path: Path, rows: list[RLRow], **settings: Any) -> dict[str, Finding]:
    write_rows(tmp_path / "x.parquet", rows)
    return {f.name: f for f in audit(tmp_path / "x.parquet", AuditSettings(**settings)).findings}


def test_a_good_file_is_ok(tmp_path: Path) -> None:
    assert {f.verdict for f in found_in(tmp_path, made()).values()} == {Verdict.OK}


def answers(row: RLRow, *texts: str) -> RLRow:
    truth = {"ground_truth": {"target": list(texts)}, "style": "rule"}
    return msgspec.structs.replace(row, golden_answers=list(texts), reward_model=truth)


def test_each_defect_is_found_in_its_row(tmp_path: Path) -> None:
    rows = made()
    rows[3] = answers(rows[3], "nan")
    rows[5] = answers(rows[5], "the")
    rows[7] = answers(rows[7], " ".join(["word"] * 21))
    rows[9] = answers(rows[9], "it")
    rows[11] = answers(rows[11], "x", " ")
    rows[13] = msgspec.structs.replace(rows[13], question=rows[0].question.upper(), id="again")
    rows[15] = msgspec.structs.replace(rows[15], id=rows[2].id)
    rows[17] = msgspec.structs.replace(rows[17], prompt=[])
    rows[19] = msgspec.structs.replace(rows[19], question="q " * 600_000)  # over a million characters
    rows[21] = msgspec.structs.replace(rows[21], reward_model=rows[22].reward_model)
    rows[23] = msgspec.structs.replace(rows[23], question=" ")
    found = found_in(tmp_path, rows, warn_share=0.0)
    at = {name: finding.rows for name, finding in found.items() if finding.rows}
    assert at == {
        "missing values": [3],
        "answers that cannot win": [5],
        "long answers": [7],
        "answers inside the question": [9],
        "empty answers": [11],
        "duplicates": [13],
        "conflicting answers": [13],
        "ids": [15],
        "prompts": [17],
        "prompts without question": [13, 19],
        "long questions": [19],
        "rewarded answers": [21],
        "empty questions": [23],
    } | {"answers inside the question": at["answers inside the question"]}
    refused = {name for name, finding in found.items() if finding.verdict is Verdict.REFUSE}
    assert refused == {
        "empty answers", "ids", "prompts", "prompts without question", "rewarded answers", "empty questions",
    }  # fmt: skip


def test_shares_decide_between_ok_warn_and_refuse(tmp_path: Path) -> None:
    for bad, verdict in ((1, "ok"), (3, "warn"), (5, "refuse")):
        rows = made()
        rows[:bad] = [answers(row, "nan") for row in rows[:bad]]
        found = found_in(tmp_path, rows, warn_share=0.005, refuse_share=0.01)["missing values"]
        assert found.verdict == verdict and found.said.startswith(f"{bad} of 400 rows")


def test_copies_made_by_mix_are_not_duplicates(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", made())
    argv = ["mix", "--input", str(tmp_path / "a.parquet"), "--output", str(tmp_path / "m.parquet")]
    assert main([*argv, "--repeat", "hotpotqa=2"]) == 0
    found = {f.name: f for f in audit(tmp_path / "m.parquet", AuditSettings()).findings}
    assert found["duplicates"].verdict == "ok" and "200 copies made by mix" in found["duplicates"].said


def test_search_r1s_prompt_and_languages_are_warned_of(tmp_path: Path) -> None:
    rows = [make_row(f"who is {i}?", ["Beijing"], "search_r1", "nq", "train", i) for i in range(100)]
    rows += [make_row(f"谁是第{i}个人？", ["x"], "search_r1", "nq", "train", 100 + i) for i in range(20)]
    found = found_in(tmp_path, rows)
    assert found["example answers"].said == '"Beijing" in 120 prompts, the answer of 100 rows'
    assert found["example answers"].verdict == found["language"].verdict == "warn"
    assert found["prompt templates"].said.startswith("search_r1 (")


def test_exit_status_page_and_what_training_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks, mixed = tmp_path / "blocks.parquet", tmp_path / "mixed.parquet"
    rows = sorted(made(2000), key=lambda row: row.data_source)
    rows[0] = answers(rows[0], "<script>alert(1)</script>")
    write_rows(blocks, rows)
    assert refusal(blocks) is None  # never audited
    assert main(["audit", str(blocks), "--steps", "50"]) == 2
    said = capsys.readouterr().out
    assert "blocks.parquet: refuse (2,000 rows)" in said and "shuffle it: scout data mix" in said
    stored = msgspec.json.decode((tmp_path / "blocks.audit.json").read_bytes(), type=Audit)
    assert stored.verdict is Verdict.REFUSE
    assert str(refusal(blocks)).startswith("order by data_source: 2 runs, ")
    page = (tmp_path / "blocks.audit.html").read_text()
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 4  # along, first steps, answer length, language
    assert re.search(r'<b class="refuse">refuse</b>', page)

    assert main(["mix", "--input", str(blocks), "--output", str(mixed)]) == 0
    assert main(["audit", str(mixed), "--steps", "50"]) == 0
    assert refusal(mixed) is None
    first = [(tmp_path / f"mixed.audit.{kind}").read_bytes() for kind in ("json", "html")]
    assert main(["audit", str(mixed), "--steps", "50"]) == 0
    assert first == [(tmp_path / f"mixed.audit.{kind}").read_bytes() for kind in ("json", "html")]

    allowed = ["--allow", "order by data_source", "--allow", "first steps by data_source"]
    assert main(["audit", str(blocks), "--steps", "50", *allowed]) == 0
    assert refusal(blocks) is None
    with pytest.raises(UserError, match="the findings are"):
        main(["audit", str(blocks), "--allow", "everything"])

    main(["audit", str(blocks)])
    blocks.write_bytes(mixed.read_bytes())  # another file under the audited name
    assert refusal(blocks) is None


def test_an_order_on_purpose_is_not_refused(tmp_path: Path) -> None:
    rows = [
        make_row(f"what is {i}?", [f"t{i}"], "brief", "nq", "train", i, {"hops": 1 + i % 3})
        for i in range(900)
    ]
    write_rows(tmp_path / "a.parquet", rows)
    argv = ["mix", "--input", str(tmp_path / "a.parquet"), "--output", str(tmp_path / "c.parquet")]
    assert main([*argv, "--order", "curriculum"]) == 0
    found = {f.name: f for f in audit(tmp_path / "c.parquet", AuditSettings()).findings}
    assert (
        found["order by hops"].verdict == "warn"
        and "on purpose: curriculum by hops" in found["order by hops"].said
    )


@pytest.mark.parametrize(
    "options", ["--steps 0", "--batch 0", "--refuse-share 2", "--warn-share 0.5", "--max-prompt-tokens 0"]
)
def test_wrong_options(tmp_path: Path, options: str) -> None:
    write_rows(tmp_path / "x.parquet", made(5))
    with pytest.raises(UserError):
        main(["audit", str(tmp_path / "x.parquet"), *options.split()])
    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]


def test_make_does_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nq, chain, dev = tmp_path / "nq.jsonl", tmp_path / "chain.jsonl", tmp_path / "dev.jsonl"
    asked = [{"question": f"who is the {i}", "answer": [f"p {i}"]} for i in range(300)]
    nq.write_text("\n".join(map(json.dumps, asked)))
    links = [{"query": "Ada", "result": "Byron"}] * 3
    long = [{"question": f"whose father was {i}?", "answer": f"f {i}", "chain": links} for i in range(40)]
    chain.write_text("\n".join(map(json.dumps, long)))
    dev.write_text('{"question": "Who is the 7?", "answer": ["x"]}\n')
    out = tmp_path / "out"
    argv = ["make", "--source", str(nq), "--source", str(chain), "--out", str(out), "--against", str(dev)]
    assert main([*argv, "--repeat", "long_chain=3"]) == 0
    said = capsys.readouterr().out
    assert "long_chain" in said and "1 left out (--against)" in said and "train.parquet: ok" in said
    facts = json.loads((out / "train.manifest.json").read_text())
    assert facts["rows_by_data_source"]["long_chain"] == 3 * math.floor(0.9 * 40)
    origins = facts["sources"][0]["made_from"]["sources"]
    assert [origin["made_from"]["sources"][0]["file"] for origin in origins] == ["nq.jsonl", "chain.jsonl"]
    with pytest.raises(UserError, match="no such file, and no name of nq_hotpotqa_train"):
        main(["make", "--source", "nothing", "--out", str(out)])
