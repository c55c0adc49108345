"""The report as one HTML file: no script, no request, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from scout_eval.charts import SMOOTH, Bar, stage_chart
from scout_eval.report_curves import curve_panels, steps_table
from scout_eval.report_data import CONTROLS, RunData
from scout_eval.report_picks import RULE, Pick
from scout_eval.report_tables import Cell, duration, stage_table
from scout_eval.report_traces import safe, trajectory_cards

# Even if text slipped through unescaped, a browser would fetch and run nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_ABOUT_STAGES = (
    "Held-out questions through the tool server. Intervals are 95 % bootstrap intervals over questions. "
    "The controls take the evidence away: “blank” empties every observation, “shuffled” searches for "
    "another question. A policy that really searches falls to about zero there."
)
_ABOUT_CURVES = (
    "GRPO, then DAPO from where GRPO ended, on one axis of training steps. Thin: each step; bold: mean of "
    f"the last {SMOOTH} steps. These are training rollouts, sampled; the table above is the evaluation."
)


def page(run: RunData, picks: list[Pick], note: str = "") -> str:
    """The whole page. ``note`` is a line shown on top, e.g. that the input is synthetic."""
    css = (resources.files("scout_eval") / "report.css").read_text(encoding="utf-8")
    title = safe(f"Scout: {run.folder.resolve().name}")
    body = "".join(
        (
            _header(run, note),
            _stages(run),
            _curves(run),
            _trajectories(picks),
            _missing(run),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>\n{css}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _header(run: RunData, note: str) -> str:
    steps = [(s.label, s.summary.metrics.overall.em.mean) for s in run.stages if s.summary]
    arrows = " → ".join(f"<b>{em:.3f}</b> {safe(label)}" for label, em in steps)
    headline = f"Exact match on held-out questions: {arrows}" if steps else "No evaluation has finished."
    notes = [note] if note else []
    notes += run.warnings
    warning = f'<div class="note">{_list(notes)}</div>' if notes else ""
    return (
        f"<h1>Scout: {safe(run.folder.resolve().name)}</h1>"
        f'<p class="headline">{headline}</p>{warning}'
        f'<div class="two"><div class="card">{_fingerprint(run)}</div>'
        f'<div class="card scroll">{_times(run)}</div></div>'
    )


def _fingerprint(run: RunData) -> str:
    found = run.summaries()

    def distinct(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(value for value in values if value)) or "missing"

    last = found[-1] if found else None
    settings = last.identity.settings if last else {}
    facts = {
        "models": distinct(s.model for s in found),
        "questions": distinct(f"{s.rows} ({s.n_rows}, sha256 {s.identity.rows_sha256[:12]})" for s in found),
        "prompt": distinct(
            f"sha256 {s.identity.prompt_sha256[:12]}" for s in found if s.identity.prompt_sha256
        ),
        "evaluation seed": distinct(str(s.identity.seed) for s in found),
        "temperature": distinct(f"{s.identity.temperature:g}" for s in found),
        "episode": distinct(f"{key} {value}" for key, value in settings.items()),
        "commit": distinct(s.commit or "" for s in found),
        "versions": distinct(f"{name} {version}" for name, version in last.versions.items())
        if last
        else "missing",
        "infra errors": distinct(f"{s.metrics.infra_error_share:.1%}" for s in found),
        "evaluated": last.finished_at if last else "missing",
    }
    rows = "".join(f"<dt>{safe(key)}</dt><dd>{safe(value)}</dd>" for key, value in facts.items())
    return f'<h3>Fingerprint</h3><dl class="facts">{rows}</dl>'


def _times(run: RunData) -> str:
    if not run.times:
        return '<h3>Time per stage</h3><p class="gone">missing: stages.json</p>'
    longest = max((t.wall_s or 0.0 for t in run.times), default=0.0) or 1.0
    rows = []
    for t in run.times:
        wall = "–" if t.wall_s is None else duration(t.wall_s)
        cpu = "–" if t.cpu_s is None else duration(t.cpu_s)
        width = 100 * (t.wall_s or 0.0) / longest
        bar = f'<span class="bar" style="width:{width:.1f}%"></span>'
        rows.append(
            f'<tr><td>{safe(t.name)}</td><td class="wide">{bar}</td><td>{wall}</td><td>{cpu}</td></tr>'
        )
    total = duration(sum(t.wall_s or 0.0 for t in run.times))
    return (
        f"<h3>Time per stage, {total} in all</h3>"
        "<table><tr><th>stage</th><th></th><th>wall</th><th>CPU</th></tr>"
        f"{''.join(rows)}</table>"
    )


def _stages(run: RunData) -> str:
    names, rows = stage_table(run)
    head = "".join(f"<th>{safe(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    charts = [stage_chart("EM of all questions by stage", _bars(run, None), _marks(run))]
    charts += [stage_chart(f"EM of {h}-hop questions by stage", _bars(run, h)) for h in run.hops()]
    titles = ["All questions", *(f"{h} hop{'' if h == '1' else 's'}" for h in run.hops())]
    figures = "".join(
        f'<figure class="card"><h3>{safe(title)}</h3><figcaption>exact match</figcaption>{chart}</figure>'
        for title, chart in zip(titles, charts, strict=True)
    )
    return (
        "<h2>What each stage can do</h2>"
        f'<p class="soft">{_ABOUT_STAGES}</p>'
        f'<div class="card scroll"><table><tr>{head}</tr>{body}</table></div>'
        f'<div class="panels small">{figures}</div>'
        '<p class="key"><span>● mean with interval</span><span>○ observations blanked</span>'
        "<span>△ retriever shuffled</span></p>"
    )


def _cell(cell: Cell) -> str:
    if cell.missing:
        return f'<td class="gone">{safe(cell.text)}</td>'
    interval = f'<span class="ci">{safe(cell.interval)}</span>' if cell.interval else ""
    return f"<td>{safe(cell.text)}{interval}</td>"


def _bars(run: RunData, hops: str | None) -> list[Bar]:
    bars = []
    for stage in run.stages:
        group = None
        if stage.summary:
            metrics = stage.summary.metrics
            group = metrics.overall if hops is None else metrics.by.get("hops", {}).get(hops)
        short = stage.name if stage.name == "base" else stage.name.upper()
        em = group.em if group else None
        bars.append(Bar(short, em.mean, em.low, em.high) if em else Bar(short, None))
    return bars


def _marks(run: RunData) -> list[tuple[int, str, float]]:
    return [
        (i, control, summary.metrics.overall.em.mean)
        for i, stage in enumerate(run.stages)
        for control in CONTROLS
        if (summary := stage.controls.get(control))
    ]


def _curves(run: RunData) -> str:
    return (
        "<h2>How training went</h2>"
        f'<p class="soft">{_ABOUT_CURVES}</p>'
        '<p class="key"><span><i class="swatch grpo"></i>GRPO</span>'
        '<span><i class="swatch dapo"></i>DAPO</span></p>'
        f'<div class="panels">{curve_panels(run.curves)}</div>{steps_table(run.curves)}'
    )


def _trajectories(picks: list[Pick]) -> str:
    if not picks:
        return '<h2>Trajectories</h2><p class="gone">missing: no traces of an evaluation</p>'
    return (
        f'<h2>{len(picks)} trajectories</h2><p class="soft">{safe(RULE)}</p>'
        '<p class="who-key key"><span class="prompt">prompt</span>'
        '<span class="policy">policy: trained on</span>'
        '<span class="tool">tool: never trained on</span></p>'
        f'<div class="runs">{trajectory_cards(picks)}</div>'
    )


def _missing(run: RunData) -> str:
    if not run.missing:
        return ""
    return f'<h2>What is missing</h2><div class="note">{_list(run.missing)}</div>'


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{safe(item)}</li>' for item in items)}</ul>"
