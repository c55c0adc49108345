"""Policies with no model. The oracle knows the plan and the gold; it measures the tool, not a policy."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scout_agent.policy import Finish, PolicyTurn, prompt_span
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.observation import neutralise, truncate_tokens
from scout_protocol.records import Author, RLRow, Span

UNKNOWN = "unknown"
_YES_NO = {"yes", "no"}
_SPACE = re.compile(r"\s+")


def _flat(text: str) -> str:
    """Lower case, single spaces, and markers inert as they are in an observation."""
    return _SPACE.sub(" ", neutralise(text)).strip().lower()


class OraclePolicy:
    """Plays a row's own plan and then answers with its gold.

    A plan is ``extra_info["oracle"]``: a list of ``{"think": str, "query": str}``; a last step without a
    query gives the thought of the answer. Rows without a plan (HotpotQA) get one search for each of
    ``extra_info["supporting_titles"]``, and the gold is answered only if the observations really hold it
    (for yes/no: if every supporting title came back); otherwise the answer is "unknown". The last turn's
    ``extra["answerable"]`` says which it was.

    Args:
        dialect: name of the dialect to speak.
        check_plans: apply the evidence rule to rows with a plan too.
    """

    def __init__(self, dialect: str = "search-r1", check_plans: bool = False) -> None:
        self.name = "oracle"
        self.dialect = get_dialect(dialect)
        self.check_plans = check_plans

    async def start(self, row: RLRow) -> OracleSession:
        """Begin a trajectory; costs nothing."""
        return OracleSession(row, self.dialect, self.check_plans)


class OracleSession:
    """One scripted trajectory."""

    def __init__(self, row: RLRow, dialect: Dialect, check_plans: bool) -> None:
        self.prompt = prompt_span(row)
        self.dialect = dialect
        plan = row.extra_info.get("oracle")
        self.titles: list[str] = list(dict.fromkeys(row.extra_info.get("supporting_titles") or ()))
        self.must_find = check_plans or not plan
        self.last_thought = "The results hold the answer."
        if plan:
            self.steps = [(str(s["think"]), str(s["query"])) for s in plan if s.get("query")]
            if not plan[-1].get("query"):
                self.last_thought = str(plan[-1]["think"])
        else:
            self.steps = [(f"I need the page about {title}.", title) for title in self.titles]
        self.golds = list(row.golden_answers)
        self.next_step = 0
        self.seen = ""

    async def act(self, max_tokens: int) -> PolicyTurn:
        """The next search of the plan, or the answer; ``max_tokens`` has no meaning without tokens."""
        if self.next_step < len(self.steps):
            think, query = self.steps[self.next_step]
            self.next_step += 1
            return PolicyTurn(
                self._text(think, self.dialect.search.open, query, self.dialect.search.close), Finish.STOP
            )
        found = self._answer()
        think = self.last_thought if found is not None else "The results do not hold the answer."
        answer = self.dialect.answer
        return PolicyTurn(
            self._text(think, answer.open, UNKNOWN if found is None else found, answer.close),
            Finish.STOP,
            extra={"answerable": found is not None},
        )

    def observe(self, observation: str, max_tokens: int) -> Span:
        """Take in an observation. It is not cut: there are no tokens to count."""
        self.seen += " " + _flat(observation)
        return Span(Author.TOOL, observation)

    def _text(self, think: str, opening: str, content: str, closing: str) -> str:
        # A title or gold with a marker in it must not break the turn.
        safe_think, safe_content = neutralise(think), neutralise(content)
        return (
            f"{self.dialect.think.open}{safe_think}{self.dialect.think.close}{opening}{safe_content}{closing}"
        )

    def _answer(self) -> str | None:
        """The first gold that the evidence supports; None where there is none."""
        if not self.must_find:
            return self.golds[0] if self.golds else None
        for gold in self.golds:
            wanted = _flat(gold)
            if wanted in _YES_NO:
                if self.titles and all(f"title: {_flat(t)})" in self.seen for t in self.titles):
                    return gold
            elif wanted and wanted in self.seen:
                return gold
        return None


def cut_chars(observation: str, dialect: Dialect, max_chars: int) -> str:
    """The observation cut to ``max_chars`` characters with both markers kept, for policies without tokens.

    Raises:
        UserError: ``max_chars`` cannot hold the empty frame.
    """

    def decode(codes: Sequence[int]) -> str:
        return "".join(map(chr, codes))

    return truncate_tokens(observation, dialect, max_chars, lambda text: [ord(c) for c in text], decode)
