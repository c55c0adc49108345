"""The card as a sheet: which table shows what."""

from __future__ import annotations

from collections.abc import Iterator

from scout_eval.benchmarks import BENCHMARKS
from scout_eval.card import Card, Reached
from scout_eval.ceiling import ReachGroup
from scout_eval.forest import Line, forest
from scout_eval.metrics import MAX_INFRA_SHARE, Group, Metrics
from scout_eval.published import PUBLISHED
from scout_eval.sheet import (
    NOTHING,
    Block,
    Cell,
    Facts,
    Figure,
    Sheet,
    Table,
    estimate,
    number,
    seconds,
    share,
)

INTERVALS = "Intervals: 95 %, bootstrap over questions."


def card_sheet(card: Card) -> Sheet:
    """All blocks of the card, in reading order."""
    overall = card.metrics.overall
    control = "" if card.control == "none" else f", control {card.control}"
    em = overall.em
    sheet = Sheet(
        f"Evaluation card: {card.title}",
        f"{card.model} ({card.stage}{control}): EM {em.mean:.3f} [{em.low:.3f}, {em.high:.3f}] "
        f"on {overall.n} questions. Fingerprint {card.fingerprint_id}.",
        list(card.warnings),
    )
    sheet.blocks.append(
        Figure("At a glance", forest("Scores, controls and ceiling", _lines(card)), INTERVALS)
    )
    sheet.blocks.append(_right(card.metrics))
    if card.metrics.samples > 1:
        sheet.blocks.append(_pass_at(card.metrics))
    sheet.blocks.append(_behaviour(card.metrics))
    if card.control == "none":
        sheet.blocks.append(_evidence(card))
        sheet.blocks.append(_ceiling(card.ceiling))
    sheet.blocks.append(_operations(card))
    sheet.blocks += published_blocks(card.metrics, card.model)
    sheet.blocks.append(
        Facts(
            "Fingerprint",
            [("id", card.fingerprint_id), *card.fingerprint.items(), ("finished", card.finished_at)],
        )
    )
    return sheet


def _groups(metrics: Metrics) -> Iterator[tuple[str, Group]]:
    yield "all", metrics.overall
    for facet, groups in metrics.by.items():
        if len(groups) > 1:
            for value, group in groups.items():
                yield _name(facet, value), group


def _name(facet: str, value: str) -> str:
    return value if facet == "data_source" else f"{facet} {value}"


def _right(metrics: Metrics) -> Table:
    rows = [
        [Cell(name), Cell(str(g.n)), *map(estimate, (g.em, g.em_folded, g.f1, g.cover_em))]
        for name, g in _groups(metrics)
    ]
    return Table(
        "Right answers",
        ("", "n", "EM", "folded EM", "F1", "cover-EM"),
        rows,
        f"{INTERVALS} Folded EM also forgives accents, dashes and 1,000 for 1000; cover-EM also "
        "forgives words around the answer, and lists of candidates.",
    )


def _pass_at(metrics: Metrics) -> Table:
    sizes = list(metrics.overall.pass_at)
    rows = [[Cell(name), *(estimate(g.pass_at.get(k)) for k in sizes)] for name, g in _groups(metrics)]
    return Table(
        "pass@k",
        ("", *(f"pass@{k}" for k in sizes)),
        rows,
        f"Unbiased estimate (Chen et al. 2021) from {metrics.samples} samples a question.",
    )


def _behaviour(metrics: Metrics) -> Table:
    rows = [
        [
            Cell(name),
            share(g.format),
            number(g.score),
            number(g.turns, 2),
            number(g.searches, 2),
            share(g.no_search),
            number(g.policy_tokens, 0),
            number(g.tool_tokens, 0),
            Cell(seconds(g.latency_s)),
        ]
        for name, g in _groups(metrics)
    ]
    columns = ("", "answered", "reward", "turns", "searches", "none", "tokens", "tool", "latency")
    return Table(
        "Behaviour",
        columns,
        rows,
        "Means a trajectory. None: share without a search. Tokens: the policy's own, and the tool's.",
    )


def _evidence(card: Card) -> Table:
    rows = [
        [
            Cell("with evidence"),
            estimate(card.metrics.overall.em),
            number(card.metrics.overall.searches, 2),
            NOTHING,
        ]
    ]
    for name in ("blank", "shuffled", "random"):
        control = card.controls.get(name)
        if control is None:
            rows.append([Cell(f"{name}: not run"), NOTHING, NOTHING, NOTHING])
        else:
            rows.append(
                [Cell(name), estimate(control.em), number(control.searches, 2), share(control.still_right)]
            )
    closed = card.metrics.overall.closed_book
    told = (
        "no answer was right"
        if closed is None
        else f"{closed:.1%} of the right answers stood in no observation"
    )
    return Table(
        "Does it need the evidence?",
        ("", "EM", "searches", "still right"),
        rows,
        f"Closed-book share: {told}. Controls: blank empties every observation, shuffled searches another "
        "question, random gives passages drawn by chance. Still right: of the questions right with evidence.",
    )


def _ceiling(reached: Reached | None) -> Table:
    columns = ("", "n", "answer", "titles", "by plan: answer", "titles")
    if reached is None:
        return Table(
            "Retrieval ceiling", columns[:1], [], "Not measured: scout eval card DIR --tools URL measures it."
        )

    def row(name: str, g: ReachGroup) -> list[Cell]:
        shares = (g.answer_by_question, g.titles_by_question, g.answer_by_plan, g.titles_by_plan)
        return [Cell(name), Cell(str(g.n)), *map(estimate, shares)]

    rows = [row("all", reached.overall)]
    for facet, groups in reached.by.items():
        if len(groups) > 1:
            rows += [row(_name(facet, value), group) for value, group in groups.items()]
    within, beyond = reached.em_within, reached.em_beyond
    parts = [
        f"Top {reached.topk} a search. The first two: one search with the question as it stands. By plan: "
        f"the searches of somebody who knows the way (at most {reached.max_queries}). A yes or no is nowhere "
        "to find and not counted as an answer."
    ]
    if within:
        parts.append(
            f"EM where the answer is within reach ({reached.n_within} questions): {within.mean:.3f} "
            f"[{within.low:.3f}, {within.high:.3f}]."
        )
    if beyond:
        parts.append(
            f"EM where it is not ({reached.n_beyond}): {beyond.mean:.3f} "
            f"[{beyond.low:.3f}, {beyond.high:.3f}]."
        )
    return Table("Retrieval ceiling", columns, rows, " ".join(parts))


def _operations(card: Card) -> Facts:
    m, tool = card.metrics, card.metrics.tool
    pairs = [
        ("stopped by", ", ".join(f"{name} {count}" for name, count in m.stop_reasons.items())),
        (
            "infra errors",
            f"{m.n_infra_errors} of {m.n_trajectories} trajectories ({m.infra_error_share:.2%}; "
            f"above {MAX_INFRA_SHARE:.0%} there is no card)",
        ),
    ]
    if tool:
        kinds = ", ".join(f"{kind} {count}" for kind, count in tool.infra_kinds.items()) or "none"
        pairs += [
            ("outages by kind", kinds),
            ("tool calls", f"{tool.n_calls}, of these {tool.n_invalid} not executable (the policy's errors)"),
            (
                "latency of a call",
                f"median {seconds(tool.call_p50_s)}, 95 % below {seconds(tool.call_p95_s)}",
            ),
            (
                "latency of a trajectory",
                f"median {seconds(tool.trajectory_p50_s)}, 95 % below {seconds(tool.trajectory_p95_s)}",
            ),
        ]
    pairs.append(("wall time", f"{card.wall_s:.1f} s in the last process"))
    return Facts("Operations", pairs)


def _lines(card: Card) -> list[Line]:
    o = card.metrics.overall
    lines = [Line("EM", o.em)]
    lines += [
        Line(name, v) for name, v in (("folded EM", o.em_folded), ("F1", o.f1), ("cover-EM", o.cover_em)) if v
    ]
    lines += [Line(f"pass@{k}", v) for k, v in o.pass_at.items() if k != "1"]
    for facet, groups in card.metrics.by.items():
        if len(groups) > 1:
            lines += [Line(f"EM, {_name(facet, value)}", g.em) for value, g in groups.items()]
    lines += [Line(f"EM, control {name}", c.em, "taken") for name, c in card.controls.items()]
    if card.ceiling:
        r = card.ceiling.overall
        named = (("ceiling, one search", r.answer_by_question), ("ceiling, by plan", r.answer_by_plan))
        lines += [Line(name, v, "ceiling") for name, v in named if v]
    return lines


def published_blocks(metrics: Metrics, model: str) -> list[Block]:
    """Our EM on the field's benchmarks with published rows beneath; nothing where no question is of one."""
    ours = {name: g for name, g in metrics.by.get("data_source", {}).items() if name in BENCHMARKS}
    if not ours:
        return []
    shown = [b for name, b in BENCHMARKS.items() if name in ours]
    whole = len(shown) == len(BENCHMARKS)
    row = [Cell(f"ours: {model}"), *(estimate(ours[b.data_source].em) for b in shown)]
    rows = [[*row, number(sum(g.em.mean for g in ours.values()) / len(ours) if whole else None)]]
    for p in PUBLISHED:
        cells = [number(p.scores.get(b.data_source)) for b in shown]
        rows.append([Cell(p.method), *cells, number(p.average)])
    sizes = ", ".join(f"{b.title} {ours[b.data_source].n} of {b.n} ({b.split})" for b in shown)
    table = Table(
        "Beside published numbers (EM)",
        ("", *(b.title for b in shown), "avg"),
        rows,
        f"avg: of all seven. Questions of ours: {sizes}. Published rows search the 2018 Wikipedia (wiki-18, "
        "21 million passages) with E5, top 3: unless ours does too, they give the scale and no ranking.",
        rule_after=1,
    )
    sources = [(p.method, "; ".join(filter(None, (p.source, p.read, p.note)))) for p in PUBLISHED]
    return [table, Facts("Sources of the published numbers", sources)]
