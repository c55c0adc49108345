"""Is the order mixed? Runs of equal values against a shuffled file, and what the first steps will see."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scout_data.findings import Finding, Verdict

ENOUGH = 20  # expected rows below which chance alone explains much
BINS = 60


def runs(values: Sequence[str]) -> tuple[int, int]:
    """``(number of runs, length of the longest)`` of equal neighbours."""
    count, longest, length = 0, 0, 0
    before: str | None = None
    for value in values:
        length = length + 1 if value == before else 1
        count += value != before
        longest = max(longest, length)
        before = value
    return count, longest


def expected_runs(counts: Sequence[int]) -> tuple[float, float]:
    """Mean and standard deviation of the number of runs over all orders.

    Mood 1940, Barton and David 1957, for any number of kinds: with n = sum n_i and s_k = sum n_i^k,
    mean (n(n + 1) - s_2) / n and variance (s_2 (s_2 + n(n + 1)) - 2 n s_3 - n^3) / (n^2 (n - 1)).
    """
    n = sum(counts)
    if n < 2:
        return float(n), 0.0
    s2, s3 = sum(c**2 for c in counts), sum(c**3 for c in counts)
    mean = (n * (n + 1) - s2) / n
    variance = (s2 * (s2 + n * (n + 1)) - 2 * n * s3 - n**3) / (n**2 * (n - 1))
    return mean, math.sqrt(max(variance, 0.0))


def block_finding(key: str, values: Sequence[str], on_purpose: str = "") -> Finding:
    """Refuse a file whose neighbours are far more alike than in a shuffled one."""
    counts = Counter(values)
    name = f"order by {key}"
    found, longest = runs(values)
    mean, deviation = expected_runs(list(counts.values()))
    z = (found - mean) / deviation if deviation else 0.0
    numbers: dict[str, Any] = {
        "runs": found,
        "runs_if_shuffled": mean,
        "deviations": z,
        "longest_run": longest,
        "groups": dict(counts.most_common()),
    }
    said = f"{found:,} runs, {mean:,.0f} in a shuffled file; the longest is {longest:,} rows"
    verdict = Verdict.OK
    if z < -6 and found < mean / 2:
        verdict = Verdict.REFUSE
    elif z < -4:
        verdict = Verdict.WARN
    if verdict is Verdict.REFUSE and on_purpose:
        return Finding(name, Verdict.WARN, f"{said}; ordered on purpose: {on_purpose}", numbers)
    remedy = "" if verdict is Verdict.OK else "shuffle it: scout data mix"
    return Finding(name, verdict, said, numbers, remedy=remedy)


def window_finding(key: str, values: Sequence[str], steps: int, batch: int, on_purpose: str = "") -> Finding:
    """Refuse where the first steps hardly see a group that is there in plenty."""
    total, window = len(values), min(steps * batch, len(values))
    whole, first = Counter(values), Counter(values[:window])
    name = f"first steps by {key}"
    parts, missing, odd = [], [], []
    for group, n in whole.most_common():
        mean = window * n / total
        spread = math.sqrt(mean * (1 - n / total) * (total - window) / max(total - 1, 1))
        got = first[group]
        parts.append(f"{group} {got / window:.1%} (file {n / total:.1%})")
        if mean >= ENOUGH and got < mean / 4:
            missing.append(group)
        elif spread and abs(got - mean) > max(4 * spread, 0.2 * mean):
            odd.append(group)
    shown = ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
    said = f"{steps} steps x {batch} = {window:,} rows: {shown}"
    verdict = Verdict.REFUSE if missing else Verdict.WARN if odd else Verdict.OK
    if verdict is Verdict.REFUSE and on_purpose:
        verdict, said = Verdict.WARN, f"{said}; ordered on purpose: {on_purpose}"
    remedy = ""
    if verdict is not Verdict.OK and not on_purpose:
        remedy = (
            f"hardly any {', '.join(missing)}: scout data mix" if missing else "scout data mix evens it out"
        )
    numbers = {"window": window, "whole": dict(whole.most_common()), "first": dict(first.most_common())}
    return Finding(name, verdict, said, numbers, remedy=remedy)


def shares_along(values: Sequence[str], bins: int = BINS, top: int = 5) -> dict[str, list[float]]:
    """Share of each group in ``bins`` equal stretches of the file; the rest beyond ``top`` as "others"."""
    names = [name for name, _ in Counter(values).most_common(top)]
    bins = min(bins, len(values))
    out: dict[str, list[float]] = {name: [] for name in names}
    others = []
    for i in range(bins):
        part = values[len(values) * i // bins : len(values) * (i + 1) // bins]
        counts = Counter(part)
        for name in names:
            out[name].append(counts[name] / len(part))
        others.append(1 - sum(counts[name] for name in names) / len(part))
    if max(others) > 1e-9:
        out["others"] = others
    return out
