"""Reading of metrics, the common axis, the picks, and charts whose pixels are turned back into data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scout_eval.charts import Bar, Series, line_chart, stage_chart, trailing_mean
from scout_eval.report_curves import curve_panels, offsets, steps_table
from scout_eval.report_data import Curve, RunData, Stage, load_run
from scout_eval.report_picks import pick_trajectories
from scout_eval.report_tables import duration
from scout_eval.report_traces import safe
from scout_eval.svg import nice_ticks
from scout_protocol.records import StopReason, Trace


def read_curve(folder: Path, text: str) -> tuple[Curve, RunData]:
    (folder / "grpo").mkdir()
    (folder / "grpo" / "metrics.jsonl").write_text(text)
    run = load_run(folder)
    return run.curves["grpo"], run


def test_a_step_written_twice_counts_as_it_was_written_last(tmp_path: Path) -> None:
    lines = [{"step": 1, "a": 1}, {"step": 2, "a": 2, "b": 7}, {"step": 2, "a": 20}, {"step": 3, "a": 3}]
    curve, _ = read_curve(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))
    assert curve.series("a") == [(1, 1.0), (2, 20.0), (3, 3.0)]
    assert curve.series("b") == [(2, 7.0)]


def test_what_is_no_number_is_a_gap(tmp_path: Path) -> None:
    text = '{"step": 1, "a": NaN, "b": "x", "c": true}\n{"step": 2, "a": Infinity}\n{"step": 3, "a": 0.5}\n'
    curve, run = read_curve(tmp_path, text)
    assert curve.at == [1, 2, 3] and curve.series("a") == [(3, 0.5)]
    assert curve.series("b") == curve.series("c") == [] and run.warnings == []


def test_torn_and_foreign_lines_are_counted(tmp_path: Path) -> None:
    curve, run = read_curve(tmp_path, '{"step": 1, "a": 1}\n[]\n{"a": 3}\n\n{"step": 2, "a"')
    assert curve.series("a") == [(1, 1.0)]
    assert run.warnings == ["grpo/metrics.jsonl: 3 of 5 lines were not readable."]


def test_verls_own_nesting_is_read(tmp_path: Path) -> None:
    curve, _ = read_curve(tmp_path, '{"step": 4, "data": {"scout/em": 0.25}}\n')
    assert curve.series("scout/em") == [(4, 0.25)]


def curve(name: str, *at: int) -> Curve:
    return Curve(name, list(at), [{"scout/em": a / 100} for a in at])


@pytest.mark.parametrize(
    ("grpo", "dapo", "expected"),
    [
        ((1, 2, 40), (1, 30), {"grpo": 0.0, "dapo": 40.0}),  # DAPO counts from 1 again
        ((1, 2, 40), (41, 80), {"grpo": 0.0, "dapo": 0.0}),  # DAPO goes on counting
        ((), (1, 30), {"dapo": 0.0}),
        ((1, 5), (), {"grpo": 0.0}),
        ((), (), {}),
    ],
)
def test_one_axis_for_both_runs(grpo: Any, dapo: Any, expected: dict[str, float]) -> None:
    curves = {"grpo": curve("grpo", *grpo), "dapo": curve("dapo", *dapo)}
    assert offsets(curves) == expected
    assert curve_panels(curves).count("<figure") == 9


def test_tooltips_name_the_runs_own_step() -> None:
    text = curve_panels({"grpo": curve("grpo", 1, 40), "dapo": curve("dapo", 1, 30)})
    assert "DAPO step 30: 0.3" in text and "GRPO step 40: 0.4" in text
    assert "step 70" not in text


def test_the_numbers_behind_the_curves() -> None:
    text = steps_table({"grpo": curve("grpo", 1, 40), "dapo": curve("dapo")})
    assert text.count("<tr>") == 3 and "<td>GRPO 40</td>" in text and "<td>0.4</td>" in text


def points_of(svg: str, css: str) -> list[tuple[float, float]]:
    path = re.search(rf'<path class="{css}" d="([^"]+)"', svg)
    assert path
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", path.group(1))]


def test_the_drawn_line_is_the_data() -> None:
    """The axis' own ticks give the map from pixels back to data, independent of the code's scale."""
    data = [(1.0, 0.2), (4.0, 0.9), (8.0, 0.5)]
    svg = line_chart("t", [Series("grpo", "GRPO", data)], [], 8)
    texts = re.findall(r'<text class="tick" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([\d.]+)<', svg)
    ys = [(float(v), float(y) - 3.5) for _, y, anchor, v in texts if anchor == "end"]
    xs = [(float(v), float(x)) for x, _, anchor, v in texts if anchor == "middle"]

    def back(pixel: float, ticks: list[tuple[float, float]]) -> float:
        (v0, p0), (v1, p1) = ticks[0], ticks[-1]
        return v0 + (pixel - p0) / (p1 - p0) * (v1 - v0)

    drawn = points_of(svg, "grpo line")
    assert [(back(x, xs), back(y, ys)) for x, y in drawn] == [
        (pytest.approx(x, abs=0.01), pytest.approx(y, abs=0.01)) for x, y in data
    ]


def test_a_long_line_is_smoothed_and_the_raw_one_stays() -> None:
    svg = line_chart("t", [Series("dapo", "DAPO", [(float(i), float(i % 2)) for i in range(20)])], [10], 20)
    assert len(points_of(svg, "dapo raw")) == len(points_of(svg, "dapo line")) == 20
    assert points_of(svg, "dapo raw") != points_of(svg, "dapo line")
    assert svg.count('class="divider"') == 1


def test_a_chart_of_nothing_is_nothing() -> None:
    assert line_chart("t", [Series("grpo", "GRPO", [])], [], 5) == ""


@settings(deadline=None)  # the machine is shared
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 7))
def test_trailing_mean_looks_back_only(ys: list[float], window: int) -> None:
    points = [(float(i), y) for i, y in enumerate(ys)]
    found = trailing_mean(points, window)
    for i in range(len(ys)):
        seen = [ys[j] for j in range(len(ys)) if i - window < j <= i]
        assert found[i] == (float(i), pytest.approx(sum(seen) / len(seen), abs=1e-6))


@settings(deadline=None)
@example(0.0, 5e-324)
@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_cover_the_range_evenly(low: float, width: float) -> None:
    ticks = nice_ticks(low, low + width)
    slack = 1e-6 * (abs(low) + width + 1)
    assert ticks[0] <= low + slack and ticks[-1] >= low + width - slack
    gaps = [b - a for a, b in pairwise(ticks)]
    assert 2 <= len(ticks) <= 8 and max(gaps) - min(gaps) <= slack


def test_stage_chart_shows_what_is_missing() -> None:
    svg = stage_chart(
        "EM", [Bar("base", 0.0, 0.0, 0.0), Bar("SFT", None)], [(0, "blank", 0.0), (0, "shuffled", 0.1)]
    )
    assert ">missing<" in svg and svg.count("stage dot") == 1
    assert "base, blank: 0.000" in svg and "base, shuffled: 0.100" in svg


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (181.4, "3 min 01 s"), (7500, "2 h 05 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_safe_keeps_lines_and_shows_what_it_replaced() -> None:
    assert safe("a\n\tb<\x1b[31m\ud800\u2066>") == "a\n\tb&lt;\ufffd[31m\ufffd\ufffd&gt;"


def picks(
    tmp_path: Path, make_trace: Callable[..., Trace], folders: dict[str, list[tuple[float, int]]]
) -> list[Any]:
    """Picks of a run whose folders hold one (em, searches) per question."""
    for name, found in folders.items():
        folder = tmp_path / "eval" / name
        folder.mkdir(parents=True)
        with (folder / "traces.jsonl").open("wb") as file:
            for i, (em, n) in enumerate(found):
                stop = StopReason.ANSWER if em >= 0 else StopReason.INFRA_ERROR
                turns = ("<search>q</search>",) * n + ("<answer>a</answer>",)
                file.write(msgspec.json.encode(make_trace(i, max(em, 0.0), stop, turns, stage=name)) + b"\n")
    stages = [
        Stage(name, f"after {name}", object() if name in folders else None, {})  # type: ignore[arg-type]
        for name in ("base", "sft", "grpo", "dapo")
    ]
    return [
        (p.title, p.trace.stage, p.trace.question_id)
        for p in pick_trajectories(RunData(tmp_path, stages, {}, []))
    ]


def test_picks_follow_the_rule(tmp_path: Path, make_trace: Callable[..., Trace]) -> None:
    found = picks(
        tmp_path,
        make_trace,
        {
            "sft": [(1, 1), (0, 1), (0, 1), (0, 1), (0, 1)],
            "dapo": [(1, 1), (1, 2), (1, 3), (0, 2), (0, 3)],
            "dapo.blank": [(0, 3)] * 5,
            "dapo.shuffled": [(0, 3)] * 5,
        },
    )
    assert found == [
        ("after sft", "sft", "q2"),
        ("after dapo, the same question", "dapo", "q2"),
        ("after dapo, observations blanked", "dapo.blank", "q2"),
        ("after dapo, retriever shuffled", "dapo.shuffled", "q2"),
        ("after dapo, a wrong answer", "dapo", "q4"),
        ("after dapo, a right answer", "dapo", "q0"),
    ]


def test_picks_of_a_run_that_has_less(tmp_path: Path, make_trace: Callable[..., Trace]) -> None:
    found = picks(tmp_path, make_trace, {"sft": [(0, 1), (-1, 3), (0, 2)]})
    assert [(stage, question) for _, stage, question in found] == [("sft", "q2"), ("sft", "q0")]


def test_no_traces_no_picks(tmp_path: Path, make_trace: Callable[..., Trace]) -> None:
    assert picks(tmp_path, make_trace, {}) == []
