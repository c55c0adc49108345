"""The numbers of an evaluation on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scout_eval.card import reward_text
from scout_eval.metrics import Estimate, Group
from scout_eval.summary import SUMMARY, Summary, read_summary
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason


def show(folder: Path, console: Console | None = None) -> None:
    """Print one evaluation, or every finished evaluation directly under the folder.

    Raises:
        UserError: there is none.
    """
    console = console or Console(highlight=False)
    folders = (
        [folder] if (folder / SUMMARY).is_file() else sorted(p.parent for p in folder.glob(f"*/{SUMMARY}"))
    )
    if not folders:
        raise UserError("evaluation", folder, f"has no {SUMMARY}: run `scout eval run` first")
    for path in folders:
        print_summary(read_summary(path), console)


def print_summary(summary: Summary, console: Console) -> None:
    """One evaluation as a table: overall, then every facet with more than one value."""
    identity, metrics = summary.identity, summary.metrics
    control = "" if identity.control == "none" else f", control: {identity.control}"
    title = (
        f"{escape(identity.stage)}{control} · {escape(summary.model)} · {metrics.n_trajectories} questions"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("n", "EM [95 %]", "F1", "ans.", "reward", "turns", "searches", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    _row(table, "all", metrics.overall)
    for facet, groups in metrics.by.items():
        if len(groups) > 1:
            for value, group in groups.items():
                _row(table, f"{facet} {escape(value)}", group)
    console.print(table)
    stops = ", ".join(f"{name} {count}" for name, count in metrics.stop_reasons.items())
    line = f"  stopped by: {stops}; infra errors {metrics.infra_error_share:.1%}; {summary.wall_s:.1f} s"
    overall = metrics.overall
    if overall.answerable is not None:
        on = "–" if overall.em_answerable is None else f"{overall.em_answerable:.3f}"
        line += f"; evidence found for {overall.answerable:.1%}, EM on these {on}"
    console.print(line, soft_wrap=True)
    slow = sum(
        metrics.stop_reasons.get(s.value, 0) for s in (StopReason.TURN_TIMEOUT, StopReason.TRAJECTORY_TIMEOUT)
    )
    if identity.reward:
        console.print(f"  reward: {escape(reward_text(identity.reward))}", soft_wrap=True)
    if slow:
        warning = f"{slow} trajectories ran into a time limit and count as wrong; raise --turn-timeout-s"
        console.print(f"  [yellow]{warning}[/]", soft_wrap=True)


def estimate(value: Estimate) -> str:
    """A mean with its interval, e.g. ``.412 [.371, .455]``."""
    return f"{_short(value.mean)} [{_short(value.low)}, {_short(value.high)}]"


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value < 0.9995 else "1.00"


def _row(table: Table, name: str, group: Group) -> None:
    table.add_row(
        name,
        str(group.n),
        estimate(group.em),
        _short(group.f1.mean),
        f"{group.format:.0%}",
        _short(group.score),
        f"{group.turns:.2f}",
        f"{group.searches:.2f}",
        "–" if group.policy_tokens is None else f"{group.policy_tokens:.0f}",
    )
