"""An audit as one HTML file: no script, no request, readable in light and dark."""

from __future__ import annotations

from html import escape
from importlib import resources

from scout_data.audit_charts import bars, compare, stack
from scout_data.findings import Audit, Finding, Verdict

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WORDS = {
    Verdict.OK: "nothing stands against training on this file",
    Verdict.WARN: "can be trained on; read the warnings first",
    Verdict.REFUSE: "should not be trained on as it is",
}


def page(audit: Audit) -> str:
    """The whole page."""
    css = (resources.files("scout_data") / "audit.css").read_text(encoding="utf-8")
    title = escape(f"Audit: {audit.file}")
    worst_first = sorted(audit.findings, key=lambda f: -["ok", "warn", "refuse"].index(f.verdict))
    not_checked = "".join(f"<li>not checked: {escape(text)}</li>" for text in audit.not_checked)
    note = f'<ul class="note">{not_checked}</ul>' if not_checked else ""
    body = (
        f"<h1>{title}</h1>"
        f'<p class="headline"><b class="{audit.verdict}">{audit.verdict}</b> {_WORDS[audit.verdict]}</p>'
        f'<p class="soft">{audit.rows:,} rows · sha256 {audit.sha256[:12]} · {_settings(audit)}</p>{note}'
        f"{_charts(audit)}"
        f'<h2>Findings</h2><div class="card"><table>{"".join(map(_row, worst_first))}</table></div>'
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>\n{css}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _settings(audit: Audit) -> str:
    return escape(", ".join(f"{key} {value}" for key, value in audit.settings.items()))


def _row(finding: Finding) -> str:
    remedy = f'<div class="remedy">{escape(finding.remedy)}</div>' if finding.remedy else ""
    return (
        f'<tr><td><b class="{finding.verdict}">{finding.verdict}</b></td><td>{escape(finding.name)}</td>'
        f"<td>{escape(finding.said)}{remedy}</td></tr>"
    )


def _charts(audit: Audit) -> str:
    figures = []
    charts = audit.charts
    for key, series in charts.get("along", {}).items():
        about = "share of each group from the first row to the last; level bands are a mixed file"
        figures.append(_figure(f"Along the file, by {key}", about, stack(series)))
        first = charts["first"][key]
        window = sum(first["first"].values())
        about = f"share in the first {window:,} rows (full) and in the whole file (pale)"
        figures.append(
            _figure(f"What the first steps see, by {key}", about, compare(first["first"], first["whole"]))
        )
    if lengths := charts.get("prompt_tokens"):
        limit = charts["max_prompt_tokens"]
        pairs = sorted((int(k), n) for k, n in lengths.items())
        figures.append(
            _figure(
                "Prompt length", f"tokens, with the chat template; the limit is {limit:,}", bars(pairs, limit)
            )
        )
    if words := charts.get("answer_words"):
        pairs = sorted((int(k), n) for k, n in words.items())
        figures.append(
            _figure("Answer length", "words of the first golden answer; 30 stands for more", bars(pairs))
        )
    if languages := charts.get("languages"):
        figures.append(
            _figure("Language of the questions", "a guess by script and common words", compare(languages, {}))
        )
    return f'<div class="panels">{"".join(figures)}</div>'


def _figure(title: str, about: str, chart: str) -> str:
    head = f"<h3>{escape(title)}</h3><figcaption>{escape(about)}</figcaption>"
    return f'<figure class="card">{head}{chart}</figure>'
