"""The curves of a report: GRPO and DAPO one after the other on one axis of steps."""

from __future__ import annotations

from collections.abc import Mapping

from scout_eval.charts import Series, line_chart
from scout_eval.report_data import ALGORITHMS, Curve
from scout_eval.report_traces import safe

# title -> key in metrics.jsonl (verl's names, and Scout's own under "scout/")
PANELS = (
    ("Reward", "critic/score/mean"),
    ("Exact match of rollouts", "scout/em"),
    ("Searches per trajectory", "scout/searches"),
    ("Turns per trajectory", "scout/turns"),
    ("Entropy of the policy", "actor/entropy"),
    ("Gradient norm", "actor/grad_norm"),
    ("Groups with equal rewards (share)", "scout/zero_variance_group_share"),
    ("Response length (tokens)", "response_length/mean"),
    ("Seconds per step", "timing_s/step"),
)


def offsets(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Where each run's step 0 lies on the common axis.

    A run whose own steps already go on from the one before it is not moved.
    """
    found: dict[str, float] = {}
    end = 0.0
    for name in ALGORITHMS:
        curve = curves.get(name)
        if curve is None or not curve.at:
            continue
        found[name] = 0.0 if curve.at[0] > end else end
        end = found[name] + curve.at[-1]
    return found


def curve_panels(curves: Mapping[str, Curve]) -> str:
    """All panels as figures. A metric that a run did not log is named under its panel."""
    shifts = offsets(curves)
    ends = [shift + curves[name].at[-1] for name, shift in shifts.items()]
    x_max = max(ends, default=1.0)
    figures = []
    for title, key in PANELS:
        series, absent = [], []
        for name in ALGORITHMS:
            points = curves[name].series(key) if name in curves else []
            if not points:
                absent.append(name.upper())
                continue
            shift = shifts[name]
            series.append(Series(name, name.upper(), [(shift + at, value) for at, value in points], shift))
        chart = line_chart(f"{title} over training steps", series, ends[:-1], x_max)
        gone = f' <span class="gone">missing for {" and ".join(absent)}</span>' if absent else ""
        figures.append(
            f'<figure class="card"><h3>{safe(title)}</h3>'
            f"<figcaption><code>{safe(key)}</code>{gone}</figcaption>{chart}</figure>"
        )
    return "".join(figures)


def steps_table(curves: Mapping[str, Curve]) -> str:
    """Every plotted number as a table, for readers who want to read off values."""
    rows = []
    for name in ALGORITHMS:
        curve = curves.get(name)
        if curve is None:
            continue
        for at, values in zip(curve.at, curve.steps, strict=True):
            cells = "".join(f"<td>{f'{values[key]:.4g}' if key in values else '–'}</td>" for _, key in PANELS)
            rows.append(f"<tr><td>{name.upper()} {at}</td>{cells}</tr>")
    if not rows:
        return ""
    head = "".join(f"<th>{safe(key.split('/', 1)[1])}</th>" for _, key in PANELS)
    return (
        "<details><summary>The numbers behind the curves</summary>"
        f'<div class="card scroll"><table><tr><th>step</th>{head}</tr>{"".join(rows)}</table></div></details>'
    )
