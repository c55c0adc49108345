"""What to search for where a question brings no plan, and what the queries give away."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scout_protocol.errors import UserError
from scout_protocol.normalise import normalise
from scout_protocol.observation import neutralise
from scout_protocol.records import Author, RLRow, Span
from scout_protocol.turn import Action
from scout_sft.plan import DEFAULT_CONCLUSION, PlannedTurn, unit_interval

PLAN = "plan"  # what extra_info.oracle says
POLICY = "policy"  # rejection sampling
STRATEGIES = (PLAN, "golden", "keywords", "bridge", POLICY)
MOST_SEARCHES = 5
_ASKING = frozenset(
    re.findall(
        r"\w+",
        "a an the of in on at to for from by with and or is are was were be been being do does did has have "
        "had what which who whom whose when where why how that this these those it its as name many much",
    )
)
_WORD = re.compile(r"[\w'’.&-]+")
_NAME = re.compile(r"[A-Z][\w'’.&-]*\w(?: [A-Z0-9][\w'’.&-]*\w)*")  # capitalised words in a row
_PUNCTUATION = re.compile(r"[^\w\s]")
_YES_NO = frozenset({"yes", "no", "noanswer"})


def keywords(question: str) -> str:
    """The question without the words of asking; the whole question where nothing else is in it."""
    words = [word.strip(".'’-") for word in _WORD.findall(question)]
    kept = [word for word in words if word and word.lower() not in _ASKING]
    return " ".join(kept) or question.strip(" ?")


def supporting_titles(row: RLRow) -> list[str]:
    """The pages that hold the answer, those named in the question first: they can be searched at once."""
    titles = list(
        dict.fromkeys(str(t) for t in row.extra_info.get("supporting_titles") or () if str(t).strip())
    )
    asked = f" {normalise(row.question)} "
    return sorted(titles, key=lambda title: f" {normalise(title)} " not in asked)


def queries(row: RLRow, strategy: str, searches: int | None = None) -> list[str]:
    """The queries for a row; empty where the strategy has none for it.

    ``golden``: the answer itself, for recall alone. ``keywords``: the question, cleaned; then the names in
    it, each alone and with other words of the question. ``bridge``: one supporting page after the other, a
    real chain.

    Args:
        searches: for ``keywords`` (at most so many: a question has only so much to ask) and ``bridge``: 1 to
            `MOST_SEARCHES`; None for one, or for one per page.
    """
    words = keywords(row.question)
    if strategy == "keywords":
        return _narrower(row.question, words)[: searches or 1]
    if strategy == "golden":
        answer = row.golden_answers[0]
        return [words if normalise(answer) in _YES_NO else answer]  # "yes" is no query
    titles = supporting_titles(row)
    if not titles:
        return []
    if searches is None:
        return titles
    first, last = titles[0], titles[-1]
    closer = {title: f"{title} {_rest(words, title)}".strip() for title in (first, last)}
    return {
        1: [words],
        2: [first, last],
        3: [words, first, last],
        4: [words, first, closer[first], last],
        5: [words, first, closer[first], last, closer[last]],
    }[searches]


def _without_asking(name: str) -> str:
    """A capitalised run without the word of asking that begins a sentence ("Were Ada" is "Ada")."""
    first, _, rest = name.partition(" ")
    return rest if first.lower() in _ASKING else name


def _narrower(question: str, words: str) -> list[str]:
    """The cleaned question, every name in it, and every name with what else is asked; no query twice."""
    names = [name for found in _NAME.findall(question) if (name := _without_asking(found))]
    closer = [f"{name} {rest}" for name in names if (rest := _rest(words, name))]
    return list({query.lower(): query for query in [words, *names, *closer]}.values())


def _rest(words: str, title: str) -> str:
    known = set(title.lower().split())
    return " ".join([word for word in words.split() if word.lower() not in known][:3])


def turns_for(row: RLRow, asked: Sequence[str]) -> list[PlannedTurn]:
    """The turns that put these queries and then give the first golden answer."""

    def said(text: str) -> str:
        return neutralise(text).strip()

    turns = []
    for number, query in enumerate(asked):
        start = "First I look up" if number == 0 else "Next I look up"
        turns.append(PlannedTurn(said(f"{start} {query}."), Action.SEARCH, said(query)))
    return (
        [*turns, PlannedTurn(DEFAULT_CONCLUSION, Action.ANSWER, said(row.golden_answers[0]))] if turns else []
    )


def assign(rows: Sequence[RLRow], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """``{row id: strategy}`` in these shares, by ids and seed alone."""
    ordered = sorted((row.id for row in rows), key=lambda row_id: unit_interval(seed, "strategy", row_id))
    whole, chosen, start = sum(shares.values()), {}, 0
    done = 0.0
    for name, share in shares.items():
        done += share
        stop = round(len(ordered) * done / whole)
        chosen.update(dict.fromkeys(ordered[start:stop], name))
        start = stop
    return chosen


def spread(row_id: str, low: int, high: int, seed: int) -> int:
    """A number of searches for the row, each from ``low`` to ``high`` as likely as any other."""
    return low + int(unit_interval(seed, "searches", row_id) * (high - low + 1))


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in the text as whole words, after normalisation.

    Compared with punctuation dropped ("A.M." is "am"), and with punctuation as a space ("Eel.</information>"
    has the word "Eel", and "Hanks–Howard" has "Hanks").
    """
    for prepare in (normalise, lambda given: normalise(_PUNCTUATION.sub(" ", given))):
        padded = f" {prepare(text)} "
        if any(f" {key} " in padded for answer in answers if (key := prepare(answer))):
            return True
    return False


def reveals_answer(row: RLRow, spans: Sequence[Span], asked: Sequence[str]) -> bool:
    """Whether a query has the answer before the question or a result had it: it knew beforehand."""
    answers = [answer for answer in row.golden_answers if normalise(answer) not in _YES_NO]
    if not answers or holds(row.question, answers):
        return False
    pages = [span.text for span in spans if span.author is Author.TOOL]
    for number, query in enumerate(asked):
        if holds(query, answers):
            return not any(holds(page, answers) for page in pages[:number])
    return False


def context_found(row: RLRow, spans: Sequence[Span]) -> bool:
    """Whether the results hold the answer; for yes or no, whether they hold every supporting page."""
    seen = "\n".join(span.text for span in spans if span.author is Author.TOOL)
    if normalise(row.golden_answers[0]) in _YES_NO:
        titles = supporting_titles(row)
        return bool(titles) and all(f"(Title: {neutralise(title)})" in seen for title in titles)
    return holds(seen, row.golden_answers)


def parse_shares(option: str, given: Sequence[str]) -> dict[str, float]:
    """``["golden=0.2", "bridge"]`` as shares; a strategy without a number has 1.

    Raises:
        UserError: an unknown strategy, one named twice, a share that is not above 0.
    """
    shares: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            share = float(number) if number else 1.0
        except ValueError:
            share = 0.0
        if name not in STRATEGIES or name in shares or not 0 < share < float("inf"):
            raise UserError(option, text, f"give each of {', '.join(STRATEGIES)} once, as NAME or NAME=SHARE")
        shares[name] = share
    if POLICY in shares and len(shares) > 1:
        raise UserError(option, ", ".join(given), f"{POLICY} goes alone: give the others another --out")
    return shares or {PLAN: 1.0}
