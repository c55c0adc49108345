"""The golden table against our parser, and against verl-tool's own where the submodule is present."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scout_protocol.dialect import get_dialect
from scout_protocol.golden import GoldenTurn, golden_turns
from scout_protocol.turn import Action, Malformed, parse

TURNS = golden_turns()
REPO = Path(__file__).resolve().parents[2]
VERL_TOOL = REPO / "verl-tool" / "verl_tool" / "servers" / "tools" / "search_retrieval.py"
by_name = pytest.mark.parametrize("golden", TURNS, ids=lambda g: g.name.replace(" ", "_"))


@by_name
def test_parse_gives_what_the_table_says(golden: GoldenTurn) -> None:
    turn = parse(golden.text, get_dialect(golden.dialect))
    assert turn.action is golden.action
    assert turn.text == golden.want_text
    assert turn.reason is golden.reason
    assert golden.text[turn.end :] == golden.rest
    assert turn.forged_observation is golden.forged
    if isinstance(golden.think, str | None):
        assert turn.think == golden.think


@by_name
def test_what_follows_the_turn_does_not_matter(golden: GoldenTurn) -> None:
    dialect = get_dialect(golden.dialect)
    turn = parse(golden.text, dialect)
    assert parse(golden.text[: turn.end], dialect) == turn


def test_the_table_covers_every_outcome() -> None:
    assert len(TURNS) >= 60
    assert len({g.name for g in TURNS}) == len(TURNS)
    for dialect in ("search-r1", "react"):
        seen = {g.action for g in TURNS if g.dialect == dialect}
        assert seen == set(Action)
    assert {g.reason for g in TURNS} == {None, *Malformed}
    assert sum(len(g.text) >= 90_000 for g in TURNS) >= 5


@by_name
def test_the_table_agrees_with_itself(golden: GoldenTurn) -> None:
    assert golden.text.endswith(golden.rest)
    assert (golden.reason is not None) == (golden.action is Action.MALFORMED)
    assert (golden.want_text == "") == (golden.action is Action.MALFORMED)
    if golden.verl_tool:
        assert (golden.verl_tool.action, golden.verl_tool.text) != (golden.action, golden.want_text)


def _verl_tool_parser() -> Any:
    """verl-tool's two parse methods, lifted out of their class, whose module needs more than we have."""
    tree = ast.parse(VERL_TOOL.read_text(encoding="utf-8"))
    wanted = {"_parse_search_query", "_parse_answer_tags"}
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in wanted]
    assert {m.name for m in methods} == wanted
    scope: dict[str, Any] = {"re": re, "Tuple": tuple}
    exec(compile(ast.Module(body=list(methods), type_ignores=[]), str(VERL_TOOL), "exec"), scope)
    return SimpleNamespace(search=scope["_parse_search_query"], answer=scope["_parse_answer_tags"])


@pytest.mark.skipif(
    not VERL_TOOL.is_file(), reason="verl-tool/ is empty: git submodule update --init verl-tool"
)
def test_verl_tool_parses_as_the_table_says() -> None:
    theirs = _verl_tool_parser()
    wrong = []
    for golden in TURNS:
        if golden.dialect != "search-r1":
            continue  # verl-tool knows no other
        text, found = theirs.search(None, golden.text)
        action = Action.SEARCH
        if not found:
            text, found = theirs.answer(None, golden.text)
            action = Action.ANSWER if found else Action.MALFORMED
        recorded = golden.verl_tool or golden
        want = recorded.text if recorded is golden.verl_tool else golden.want_text
        if (action, text) != (recorded.action, want):
            wrong.append((golden.name, action, text[:80]))
    assert wrong == []
