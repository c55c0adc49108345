"""Strategies of a harvest: their queries, what these give away, and the caps and counts on it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scout_protocol.errors import UserError
from scout_protocol.records import Author, RLRow, Span
from scout_protocol.turn import parse
from scout_sft.cli import main
from scout_sft.harvest import HarvestSettings, harvest
from scout_sft.rows import read_demos
from scout_sft.select import repeated
from scout_sft.strategies import (
    STRATEGIES,
    assign,
    context_found,
    keywords,
    parse_shares,
    queries,
    reveals_answer,
    spread,
)


def row(question: str = "Who founded the firm in Stone Bridge?", *answers: str, **extra: Any) -> RLRow:
    golden = list(answers) or ["Ada Lovelace"]
    return RLRow("x", [], "", {}, {"index": 0, "split": "train", **extra}, "r", question, golden)


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Who founded the firm in Stone Bridge?", "founded firm Stone Bridge"),
        ("What is it?", "What is it"),
        ("In which year was O'Neill's “Mr. Big” (2001) made?", "year O'Neill's Mr Big 2001 made"),
        ("谁写了它？", "谁写了它"),
    ],
)
def test_keywords(question: str, found: str) -> None:
    assert keywords(question) == found


def test_queries_of_each_strategy() -> None:
    asked = row(supporting_titles=["Ada Lovelace", "Stone Bridge"])
    assert queries(asked, "golden") == ["Ada Lovelace"]
    assert queries(asked, "keywords") == ["founded firm Stone Bridge"]
    assert queries(asked, "bridge") == ["Stone Bridge", "Ada Lovelace"]  # the one in the question first
    assert queries(row(), "bridge") == []
    assert queries(row("Is it so?", "yes"), "golden") == ["so"]
    for n in range(1, 6):
        found = queries(asked, "bridge", n)
        assert len(found) == len(set(found)) == n
        assert n == 1 or (found.index("Stone Bridge") < found.index("Ada Lovelace"))


def page(text: str) -> Span:
    return Span(Author.TOOL, text)


@pytest.mark.parametrize(
    ("asked", "searched", "pages", "reveals"),
    [
        (row(), ["Ada Lovelace"], ["Ada Lovelace …"], True),
        (row(), ["the ADA lovelace firm"], ["…"], True),
        (row(), ["Stone Bridge", "Ada Lovelace"], ["founded by Ada Lovelace.", "Ada"], False),
        (row(), ["Stone Bridge", "Ada Lovelace"], ["founded by somebody", "Ada Lovelace"], True),
        (row(), ["Stone Bridge"], ["Ada Lovelace"], False),
        (row("Is Ada Lovelace or Byron older?", "Byron"), ["Byron"], ["…"], False),  # the question says it
        (row("Is it so?", "no"), ["no"], ["…"], False),
        (row("q", "an"), ["an"], ["…"], False),  # nothing is left of the answer
        (row("q", "Lea"), ["Chelsea Leach"], ["…"], False),  # words, not letters
        (row("q", "x", "the Alias"), ["alias"], ["…"], True),
    ],
)
def test_what_queries_give_away(asked: RLRow, searched: list[str], pages: list[str], reveals: bool) -> None:
    spans = [Span(Author.PROMPT, "Ada Lovelace"), *map(page, pages)]
    assert reveals_answer(asked, spans, searched) is reveals


def test_context_found() -> None:
    assert context_found(row(), [page("by  ADA Lovelace!")])
    assert context_found(row(), [page("<information>Ada Lovelace.</information>")])
    assert context_found(row("q", "10 a.m."), [page("at 10 am")])
    assert not context_found(row(), [page("Ada"), Span(Author.POLICY, "Ada Lovelace")])
    yes = row("Are A and B towns?", "yes", supporting_titles=["A", "B"])
    assert not context_found(yes, [page("Doc 1(Title: A) yes yes yes")])
    assert context_found(yes, [page("Doc 1(Title: A) x"), page("Doc 1(Title: B) y")])


def test_shares_are_kept_and_do_not_depend_on_order() -> None:
    rows = [msgspec.structs.replace(row(), id=str(i)) for i in range(200)]
    chosen = assign(rows, {"golden": 1.0, "bridge": 3.0}, seed=0)
    assert Counter(chosen.values()) == {"golden": 50, "bridge": 150}
    assert assign(rows[::-1], {"golden": 1.0, "bridge": 3.0}, seed=0) == chosen
    assert assign(rows, {"golden": 1.0, "bridge": 3.0}, seed=1) != chosen
    counts = Counter(spread(str(i), 1, 5, 0) for i in range(2000))
    assert set(counts) == {1, 2, 3, 4, 5} and min(counts.values()) > 320  # 400 expected


@pytest.mark.parametrize(
    "given", [["nothing"], ["golden=0"], ["golden=x"], ["golden", "golden"], ["policy", "golden"]]
)
def test_wrong_strategies(given: list[str]) -> None:
    with pytest.raises(UserError):
        parse_shares("--strategy", given)


def test_all_names_parse() -> None:
    assert parse_shares("s", []) == {"plan": 1.0}
    assert parse_shares("s", ["golden=0.25", "bridge"]) == {"golden": 0.25, "bridge": 1.0}
    assert all(parse_shares("s", [name]) == {name: 1.0} for name in STRATEGIES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"searches": (0, 5)},
        {"searches": (3, 2)},
        {"searches": (1, 6)},
        {"max_revealing_share": 1.1},
        {"policy": "oracle"},
        {"strategies": (("policy", 1.0),)},
        {"samples": 0},
    ],
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        HarvestSettings(**wrong)


def titled(mini: Any) -> list[RLRow]:
    """The miniature's two-hop rows without plans, with the pages that they need."""
    found = []
    for made in mini.rows[1::2]:
        titles = [step["query"] for step in made.extra_info["oracle"]]
        info = {"index": 0, "split": "train", "supporting_titles": titles[::-1]}
        found.append(msgspec.structs.replace(made, extra_info=info))
    return found


def test_bridges_are_real_chains(mini: Any, server_url: str, tmp_path: Path) -> None:
    settings = HarvestSettings(server=server_url, strategies=(("bridge", 1.0),))
    result = harvest(titled(mini), tmp_path / "d.parquet", settings)
    demos = read_demos(tmp_path / "d.parquet")
    assert result.by_strategy == {"bridge": {"questions": 8, "in context": 8, "kept": 8}}
    for demo, made in zip(demos, mini.rows[1::2], strict=True):
        texts = [parse(turn.text).text for turn in demo.turns if turn.loss]
        assert texts == [*(s["query"] for s in made.extra_info["oracle"]), made.golden_answers[0]]
        assert demo.strategy == "bridge" and demo.found_answer_context and not demo.query_reveals_answer
        assert "".join(turn.text for turn in demo.turns) == demo.chosen


def test_revealing_demonstrations_are_capped(mini: Any, server_url: str, tmp_path: Path) -> None:
    rows = titled(mini)
    shares = (("golden", 0.5), ("bridge", 0.5))
    for share, kept in ((1.0, 4), (0.2, 1), (0.0, 0)):
        out = tmp_path / f"{share}.parquet"
        settings = HarvestSettings(server=server_url, strategies=shares, max_revealing_share=share)
        result = harvest(rows, out, settings)
        revealing = [demo for demo in read_demos(out) if demo.query_reveals_answer]
        assert len(revealing) == result.revealing == kept and {d.strategy for d in revealing} <= {"golden"}
        assert result.kept == 4 + kept and sum(result.rejected.values()) == 4 - kept
    with pytest.raises(UserError, match=r"none kept.*query reveals the answer"):
        harvest(
            rows, tmp_path / "g.parquet", HarvestSettings(server=server_url, strategies=(("golden", 1.0),))
        )


def test_rejection_sampling_keeps_what_is_right(mini: Any, server_url: str, tmp_path: Path) -> None:
    rows = list(mini.rows)
    wrong = msgspec.structs.replace(rows[0], golden_answers=["somewhere else"])
    # the scripted oracle gives the golden answer; here its pages do not hold it
    settings = HarvestSettings(server=server_url, strategies=(("policy", 1.0),), policy="oracle", samples=2)
    result = harvest([wrong, *rows[1:]], tmp_path / "d.parquet", settings)
    assert result.rejected == {"answer not in the results": 1}
    demos = read_demos(tmp_path / "d.parquet")
    assert [demo.id for demo in demos] == [made.id for made in rows[1:]]
    assert {demo.strategy for demo in demos} == {"policy"}
    with pytest.raises(UserError, match=r"other.*samples"):
        harvest([wrong, *rows[1:]], tmp_path / "d.parquet", dataclasses.replace(settings, samples=3))


def test_the_command_leaves_out_repetitions_and_validation(
    mini: Any, server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows = pytest.importorskip("scout_data.rows").write_rows
    rows = titled(mini)
    twice = msgspec.structs.replace(rows[0], id="again", question=rows[0].question.upper())
    write_rows(tmp_path / "rows.parquet", [*rows, twice])
    write_rows(tmp_path / "val.parquet", rows[3:5])
    out = tmp_path / "d.parquet"
    argv = ["harvest", "--rows", str(tmp_path / "rows.parquet"), "--out", str(out), "--server", server_url]
    argv += ["--strategy", "bridge", "--searches", "2-4", "--exclude", str(tmp_path / "val.parquet")]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "left out, question repeated: 1" in said and "left out, question in --exclude: 2" in said
    assert "bridge: answer in the results of 6 of 6 questions (100.0%), 6 kept" in said
    card = json.loads((tmp_path / "d.parquet.card.json").read_text())
    assert card["demonstrations"] == 6 and set(card["searches"]) <= {"2", "3", "4"}
    assert card["left_out"] == {"question repeated": 1, "question in --exclude": 2}
    with pytest.raises(UserError, match="--searches"):
        main([*argv, "--searches", "many"])


def test_keywords_ask_for_more_where_more_searches_are_wanted() -> None:
    asked = row("Were Scott Derrickson and Ed Wood of the same nationality?")
    whole = queries(asked, "keywords", 5)
    assert whole[:3] == ["Scott Derrickson Ed Wood same nationality", "Scott Derrickson", "Ed Wood"]
    assert [queries(asked, "keywords", n) for n in range(1, 6)] == [whole[:n] for n in range(1, 6)]
    assert len(whole) == len({query.lower() for query in whole}) == 5
    assert queries(row("where is it?"), "keywords", 5) == ["where is it"]  # there is no more to ask


def test_long_chains_are_repeated_but_none_that_gives_the_answer_away(
    mini: Any, server_url: str, tmp_path: Path
) -> None:
    def rows_of(repeat: int) -> tuple[Any, list[Any]]:
        out = tmp_path / "d.parquet"  # the same journal: over-sampling asks the server nothing
        settings = HarvestSettings(
            server=server_url, early_stop_share=0.0, long_chain_from=2, long_chain_repeat=repeat
        )
        return harvest(mini.rows, out, settings), read_demos(out)

    plain, once = rows_of(1)
    assert (plain.kept, plain.repeated) == (16, 0)
    result, demos = rows_of(3)
    assert (result.kept, result.repeated, result.played) == (16 + 2 * 8, 16, 0)
    assert [demo for demo in demos if "~" not in demo.id] == once
    copies = Counter(demo.id.partition("~")[0] for demo in demos)
    assert all(copies[demo.id] == (3 if demo.n_searches == 2 else 1) for demo in once)
    assert result.searches == {1: 8, 2: 24} and len({demo.id for demo in demos}) == 32

    revealing = [msgspec.structs.replace(demo, query_reveals_answer=True) for demo in once]
    assert repeated(revealing, HarvestSettings(long_chain_from=2, long_chain_repeat=3)) == (revealing, 0)
