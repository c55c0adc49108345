"""Questions and answers as text: duplicates, answers that cannot be won, and languages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scout_data.columns import repeats
from scout_data.findings import AuditSettings, Finding, Verdict, counted
from scout_data.language import language_of
from scout_data.split import question_key
from scout_protocol.dialect import SEARCH_R1
from scout_protocol.normalise import normalise
from scout_protocol.turn import Action, parse

# What is left of a missing value after a detour through pandas, JavaScript or SQL.
_NO_ANSWER = frozenset({"nan", "none", "null", "n/a", "undefined", "<na>", "nat"})
_COPY = re.compile(r"~\d+$")  # `mix --repeat` numbers copies on purpose


def text_findings(
    ids: Sequence[str | None],
    questions: Sequence[str | None],
    answers: Sequence[Sequence[str | None] | None],
    settings: AuditSettings,
) -> tuple[list[Finding], dict[str, Any]]:
    """All findings of this file's kind, and the charts' series."""
    total = len(questions)
    clean = [[a for a in row or () if a is not None] for row in answers]
    findings = [
        *_questions(ids, questions, clean, settings),
        *_answers(questions, answers, clean, settings),
    ]
    languages = Counter(language_of(q) for q in questions if q)
    words = Counter(min(len(a.split()), 30) for row in clean for a in row[:1])
    findings.append(_language(languages, questions, total))
    return findings, {"languages": dict(languages.most_common()), "answer_words": dict(sorted(words.items()))}


def _questions(
    ids: Sequence[str | None],
    questions: Sequence[str | None],
    answers: Sequence[Sequence[str]],
    settings: AuditSettings,
) -> list[Finding]:
    total = len(questions)
    same_id = [later for _, later, _ in repeats(ids)]
    empty = [row for row, q in enumerate(questions) if not q or not q.strip()]
    huge = [row for row, q in enumerate(questions) if q and len(q) > settings.max_question_chars]
    longest = max((len(q) for q in questions if q), default=0)
    keyed = [question_key(q) if q else f"\0{row}" for row, q in enumerate(questions)]
    copies, again, differ = 0, [], []
    for first, later, _ in repeats(keyed):
        if _COPY.search(ids[later] or ""):
            copies += 1
            continue
        again.append(later)
        if not {normalise(a) for a in answers[first]} & {normalise(a) for a in answers[later]}:
            differ.append(later)
    more = f" ({copies:,} copies made by mix are not counted)" if copies else ""
    warn, refuse = settings.warn_share, settings.refuse_share
    unique = "make ids unique: resume and reports go by them"
    chars = f"have a question of over {settings.max_question_chars:,} characters"
    fine = "fine if meant; split keeps them on one side"
    return [
        counted("ids", same_id, total, "repeat an id", unique),
        counted("empty questions", empty, total, "have no question", "leave them out"),
        counted(
            "long questions", huge, total, chars, "they fill the context", refuse, 0.0, {"longest": longest}
        ),
        counted("duplicates", again, total, f"repeat an earlier question{more}", fine, 0.2, warn),
        counted(
            "conflicting answers",
            differ,
            total,
            "repeat a question with other answers",
            "one of the two can not be won",
            refuse,
            warn,
        ),
    ]


def _answers(
    questions: Sequence[str | None],
    raw: Sequence[Sequence[str | None] | None],
    answers: Sequence[Sequence[str]],
    settings: AuditSettings,
) -> list[Finding]:
    total = len(questions)
    empty, missing, long_, inside, lost = [], [], [], [], []
    for row, (question, given, texts) in enumerate(zip(questions, raw, answers, strict=True)):
        if not given or len(texts) != len(given) or not all(a.strip() for a in texts):
            empty.append(row)
            continue
        if any(a.strip().lower() in _NO_ANSWER for a in texts):
            missing.append(row)
        if any(len(a.split()) > settings.max_answer_words for a in texts):
            long_.append(row)
        if not any(wins(a) for a in texts):
            lost.append(row)
        padded = f" {normalise(question or '')} "
        if any(f" {key} " in padded for a in texts if (key := normalise(a))):
            inside.append(row)
    warn, refuse = settings.warn_share, settings.refuse_share
    source = "look at their source: a value was missing there"
    words = f"have an answer of over {settings.max_answer_words} words"
    nothing = "nothing is left of the answer after normalisation"
    guess = "guessing pays there: expected of comparisons only"
    return [
        counted("empty answers", empty, total, "have no answer, or an empty one", "leave them out"),
        counted("missing values", missing, total, 'have an answer such as "nan"', source, refuse, warn),
        counted("long answers", long_, total, words, "exact match is hardly ever won there", refuse, warn),
        counted(
            "answers that cannot win", lost, total, "score 0 against their own answer", nothing, refuse, warn
        ),
        # "Which is older, A or B?" has its answer inside: 4 % of NQ and HotpotQA (README)
        counted(
            "answers inside the question", inside, total, "have an answer in the question", guess, 0.5, 0.1
        ),
    ]


def wins(answer: str) -> bool:
    """Whether a policy that answers exactly this gets 1.0: parsed as a turn, compared as the reward does."""
    if "<" in answer:  # only markers can come between
        turn = parse(f"{SEARCH_R1.answer.open} {answer} {SEARCH_R1.answer.close}", SEARCH_R1)
        if turn.action is not Action.ANSWER or normalise(turn.text) != normalise(answer):
            return False
    return bool(normalise(answer))


def _language(languages: Counter[str], questions: Sequence[str | None], total: int) -> Finding:
    known = Counter({name: n for name, n in languages.items() if name != "unclear"})
    if not known:
        return Finding("language", Verdict.OK, "no question has letters enough to tell", {})
    main, n = known.most_common(1)[0]
    others = known.total() - n
    shares = [(name, count / total) for name, count in languages.most_common(4)]
    said = ", ".join(f"{name} {share:.1%}" for name, share in shares if share >= 0.0005)
    verdict, remedy = Verdict.OK, ""
    if others > 0.02 * total:
        verdict, remedy = Verdict.WARN, f"more than one language: is {main} what was meant?"
    return Finding("language", verdict, said, {"main": main, "others": others}, remedy=remedy)
