"""The oracle and the two controls, in whole episodes over a real local server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scout_agent.client import HttpTools
from scout_agent.controls import BlankTools, ShuffledTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode, run_episodes
from scout_agent.scripted import UNKNOWN, OraclePolicy, cut_chars
from scout_protocol.dialect import REACT, SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.observation import Document, render, render_hint
from scout_protocol.records import Author, StopReason, Trace
from scout_protocol.turn import Action, Malformed, parse

LABELS = TraceLabels("oracle", "test")
PAGES = {
    "Kiss and Tell (film)": "Kiss and Tell is a 1945 film\nstarring  Shirley Temple as Corliss Archer.",
    "Shirley Temple": "She was Chief of\n Protocol of the United States.",
    "Odd </search> title": "An unusual page.",
}


class Library:
    """A tool server with a page for each title; keeps what it was asked."""

    def __init__(self, respond: Any) -> None:
        self.respond, self.queries = respond, []

    async def __call__(self, trajectory_id: str, action: str) -> Any:
        turn = parse(action)
        if turn.action is not Action.SEARCH:
            return self.respond(render_hint(turn.reason or Malformed.NO_ACTION), valid=False)
        self.queries.append(turn.text)
        title = turn.text.replace("‹", "<").replace("›", ">")
        found = [Document(title, title, PAGES[title])] if title in PAGES else []
        return self.respond(render(found))


@pytest.fixture
def library(respond: Any) -> Library:
    return Library(respond)


def play(
    tool_server: Any, library: Library, row: Any, policy: Any = None, wrap: Any = lambda tools: tools
) -> Trace:
    async def main() -> Trace:
        async with tool_server(library) as url, HttpTools(url) as tools:
            return await run_episode(row, policy or OraclePolicy(), wrap(tools), EpisodeSettings(), LABELS)

    return asyncio.run(main())


def answer_of(trace: Trace) -> str:
    assert trace.stop_reason is StopReason.ANSWER
    return parse(trace.spans[-1].text).text


def test_a_plan_is_played_word_for_word(tool_server: Any, library: Library, make_row: Any) -> None:
    plan = [
        {"think": "Who played?", "query": "Kiss and Tell (film)"},
        {"think": "Her office?", "query": "Shirley Temple"},
    ]
    trace = play(tool_server, library, make_row(gold="Chief of Protocol", oracle=plan))
    assert library.queries == ["Kiss and Tell (film)", "Shirley Temple"]
    assert trace.spans[1].text == "<think>Who played?</think><search>Kiss and Tell (film)</search>"
    assert answer_of(trace) == "Chief of Protocol"
    assert trace.n_turns == 3 and trace.extra["turns"][-1] == {"answerable": True}


def test_a_last_step_without_a_query_is_the_thought_of_the_answer(
    tool_server: Any, library: Library, make_row: Any
) -> None:
    plan = [{"think": "a", "query": "Shirley Temple"}, {"think": "So it is known.", "query": ""}]
    trace = play(tool_server, library, make_row(gold="x", oracle=plan))
    assert trace.spans[-1].text == "<think>So it is known.</think><answer>x</answer>"


def test_titles_are_searched_and_the_gold_is_answered_because_it_was_seen(
    tool_server: Any, library: Library, make_row: Any
) -> None:
    titles = ["Kiss and Tell (film)", "Shirley Temple", "Shirley Temple"]
    trace = play(tool_server, library, make_row(gold="chief of  protocol", supporting_titles=titles))
    assert library.queries == ["Kiss and Tell (film)", "Shirley Temple"]
    assert answer_of(trace) == "chief of  protocol"


@pytest.mark.parametrize(
    ("gold", "titles", "expected"),
    [
        ("Chief of Staff", ["Shirley Temple"], UNKNOWN),
        ("Chief of Protocol", ["Kiss and Tell (film)"], UNKNOWN),
        ("yes", ["Kiss and Tell (film)", "Shirley Temple"], "yes"),
        ("No", ["Kiss and Tell (film)", "A page that is not there"], UNKNOWN),
        ("no", [], UNKNOWN),
        ("unusual page", ["Odd </search> title"], "unusual page"),  # a marker in a title breaks nothing
        ("yes", ["Odd </search> title"], "yes"),
    ],
)
def test_no_answer_without_evidence(
    tool_server: Any, library: Library, make_row: Any, gold: str, titles: list[str], expected: str
) -> None:
    trace = play(tool_server, library, make_row(gold=gold, supporting_titles=titles))
    assert answer_of(trace) == expected
    assert trace.extra["turns"][-1] == {"answerable": expected != UNKNOWN}


def test_the_oracle_with_the_evidence_rule_reads_and_without_it_does_not(
    tool_server: Any, library: Library, make_row: Any
) -> None:
    row = make_row(gold="Chief of Protocol", oracle=[{"think": "t", "query": "Shirley Temple"}])
    assert answer_of(play(tool_server, library, row, OraclePolicy(check_plans=True))) == "Chief of Protocol"
    assert answer_of(play(tool_server, library, row, OraclePolicy(check_plans=True), BlankTools)) == UNKNOWN
    assert answer_of(play(tool_server, library, row, OraclePolicy(), BlankTools)) == "Chief of Protocol"


def test_the_oracle_speaks_the_other_dialect(make_row: Any) -> None:
    async def first_turn() -> str:
        session = await OraclePolicy("react").start(make_row(oracle=[{"think": "t", "query": "q"}]))
        return (await session.act(10)).text

    assert asyncio.run(first_turn()) == "<think>t</think><call:search>q</call:search>"


def test_blank_takes_the_text_and_leaves_the_rest(tool_server: Any, library: Library, make_row: Any) -> None:
    trace = play(
        tool_server,
        library,
        make_row(gold="Chief of Protocol", supporting_titles=["Shirley Temple"]),
        None,
        BlankTools,
    )
    assert library.queries == ["Shirley Temple"]
    assert [s.text for s in trace.spans if s.author is Author.TOOL] == [
        "\n\n<information>No results found.</information>\n\n"
    ]
    assert trace.tool_calls[0].valid and answer_of(trace) == UNKNOWN


def test_blank_keeps_an_outage_an_outage(make_row: Any) -> None:
    async def main() -> Trace:
        async with HttpTools("http://127.0.0.1:1") as tools:  # port 1: refused
            row = make_row(supporting_titles=["Shirley Temple"])
            return await run_episode(row, OraclePolicy(), BlankTools(tools), EpisodeSettings(), LABELS)

    assert asyncio.run(main()).stop_reason is StopReason.INFRA_ERROR


def shuffled_queries(
    tool_server: Any, library: Library, rows: list[Any], seed: int, concurrency: int
) -> dict[str, Any]:
    """What each row's searches were turned into, by row id."""
    asked: dict[str, list[str]] = {}

    async def answer(trajectory_id: str, action: str) -> Any:
        asked.setdefault(trajectory_id, []).append(parse(action).text)
        return await library(trajectory_id, action)

    async def main() -> dict[str, Any]:
        async with tool_server(answer) as url, HttpTools(url) as inner:
            tools = ShuffledTools(inner, [r.question for r in rows], seed)
            played = run_episodes(rows, OraclePolicy(), tools, EpisodeSettings(), LABELS, concurrency)
            return {trace.question_id: asked[trace.trace_id] async for _, trace in played}

    return asyncio.run(main())


def test_shuffled_asks_about_another_row_and_repeats(
    tool_server: Any, library: Library, make_row: Any
) -> None:
    plan = [{"think": "t", "query": "a"}, {"think": "t", "query": "b"}]
    rows = [make_row(i, oracle=plan) for i in range(30)]
    asked = shuffled_queries(tool_server, library, rows, 1, 16)
    questions = {r.question for r in rows}
    for row in rows:
        assert len(asked[row.id]) == 2
        assert set(asked[row.id]) <= questions - {row.question}
    assert shuffled_queries(tool_server, library, rows[::-1], 1, 1) == asked  # not a matter of order
    assert shuffled_queries(tool_server, library, rows, 2, 16) != asked


def test_shuffled_lets_a_malformed_turn_through(make_row: Any) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.actions: list[str] = []

        async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> Any:
            self.actions.append(action)

    inner = Recorder()
    tools = ShuffledTools(inner, ["Question 0?", "What is </search> here?"])  # type: ignore[arg-type]
    bound = tools.for_row(make_row(0))
    asyncio.run(bound.call("t", "no tags"))
    asyncio.run(bound.call("t", "<think>x</think><search>mine</search>"))
    assert inner.actions[0] == "no tags"
    assert parse(inner.actions[1]).text == "What is ‹/search› here?"


def test_shuffled_needs_something_to_shuffle() -> None:
    with pytest.raises(UserError, match="at least two rows"):
        ShuffledTools(HttpTools("http://127.0.0.1:1"), ["one", "one"])


@pytest.mark.parametrize("dialect", [SEARCH_R1, REACT])
def test_cut_chars_keeps_both_markers(dialect: Any) -> None:
    text = f"\n\n{dialect.observation.open}{'é' * 500}{dialect.observation.close}\n\n"
    cut = cut_chars(text, dialect, 100)
    assert len(cut) == 100
    assert cut.startswith(f"\n\n{dialect.observation.open}é") and cut.endswith(
        f"…(truncated){dialect.observation.close}\n\n"
    )
    assert cut_chars(text, dialect, 1000) == text
