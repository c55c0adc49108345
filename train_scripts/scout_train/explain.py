"""`scout explain`: what a recipe changes in verl, each line with its value, upstream's, and the reason.

Only differences are shown: an overlay also states what defines a method where upstream's default happens to
agree, and such lines are counted, not shown. The reason is the comment beside a key in its overlay, else the
comment lines above it, else what the overlay says of itself in its first line.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.compose import (
    OPTIONS,
    Choice,
    base_config,
    compose,
    overlays,
    parse_setting,
    read_options,
    recipes_dir,
    source_file,
)
from scout_train.words import add_words, choice_of

OURS = object()  # verl has no such key


@dataclass(frozen=True, slots=True)
class Line:
    """One key that differs from upstream. ``upstream`` is `OURS` for a key of this project."""

    key: str
    value: Any
    upstream: Any
    overlay: str
    reason: str
    reader: str = ""

    def shown(self, heading: str, readers: bool) -> str:
        """As one line; a reason that stands in the heading is not repeated."""
        default = "ours" if self.upstream is OURS else f"verl: {_short(self.upstream)}"
        read = f"  [{self.reader}]" if readers and self.reader else ""
        reason = "as above" if self.reason == heading else self.reason
        return f"  {self.key} = {_short(self.value)}  ({default})  {reason}{read}"


def _short(value: Any) -> str:
    if value is None or value == "???":
        return "none" if value is None else "to be set"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def reasons(path: Path) -> dict[str, str]:
    """Key -> reason, for every key of an overlay file."""
    import yaml

    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    last_column: dict[int, int] = {}  # line -> where its last token ends: what follows is a comment
    for token in yaml.scan(text):
        if token.end_mark.column:
            last_column[token.end_mark.line] = max(
                last_column.get(token.end_mark.line, 0), token.end_mark.column
            )
    header = _header(lines)
    fallback = _first_sentence(header)
    found: dict[str, str] = {}
    above: list[str] = []
    for number, line in enumerate(lines[len(header) :], start=len(header)):
        if line.startswith("#"):
            above.append(line.lstrip("# ").strip())
            continue
        key = line.partition(":")[0].strip()
        if not key or line[:1].isspace():
            above = []
            continue
        beside = line[last_column.get(number, len(line)) :].strip()
        found[key] = beside.lstrip("# ").strip() or " ".join(above) or fallback
        above = []
    return found


def _header(lines: list[str]) -> list[str]:
    return [line.lstrip("# ").strip() for line in itertools.takewhile(lambda t: t.startswith("#"), lines)]


def _first_sentence(header: list[str]) -> str:
    """Up to the first stop before a capital, so that ``eq. 3`` is not cut."""
    return re.split(r"[.:;](?= [A-Z]|$)", " ".join(header[:2]))[0].strip()


def _leaves(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        found: dict[str, Any] = {}
        for name, item in value.items():
            found |= _leaves(f"{prefix}.{name}", item)
        return found
    return {prefix: value}


def explain(choice: Choice, settings: list[tuple[str, Any]]) -> tuple[list[Line], int]:
    """The lines, in the order of the overlays, and how many keys say what upstream does anyway.

    Raises:
        UserError: an unknown word or key, or a key that the engine accepts and nothing reads.
    """
    from omegaconf import OmegaConf

    from scout_train.readers import Sources

    sources = Sources.of(choice.engine)
    plain, translated = _engine(choice.engine)
    config, upstream = (OmegaConf.to_container(c) for c in (compose(choice, settings), plain))
    known = read_options()
    said: dict[str, tuple[str, str]] = {}  # key -> overlay and reason; the last overlay wins
    for name, keys in overlays(choice):
        kind, _, word = name.partition("/")
        why = {} if kind == OPTIONS else reasons(recipes_dir() / f"{name}.yaml")
        for key, value in keys.items():
            for its_key, its_value in translated(key, value, source_file(name)):
                for leaf in _leaves(its_key, its_value):
                    said.pop(leaf, None)  # so that it is listed under the overlay that decides
                    said[leaf] = (source_file(name), known[word].why if kind == OPTIONS else why[key])
    for key, value in settings:
        for its_key, its_value in translated(key, value, "--set"):
            for leaf in _leaves(its_key, its_value):
                said.pop(leaf, None)
                said[leaf] = ("--set", "as you asked")
    lines, same = [], 0
    for key, (overlay, reason) in said.items():
        reader = sources.reader(key) if sources else ""
        if reader is None:
            raise UserError(
                f"{overlay}: {key}", "has no effect", f"nothing in {choice.engine} reads it: remove it"
            )
        value, before = _at(config, key), OURS if key.startswith("scout.") else _at(upstream, key)
        if before is not OURS and value == before:
            same += 1
            continue
        lines.append(Line(key, value, before, overlay, reason, reader or ""))
    return lines, same


def _engine(name: str) -> tuple[Any, Any]:
    """An engine's own defaults, and what makes its keys out of those of a recipe."""
    if name == "verl_tool":
        from scout_train.verl_tool import keys

        return keys.base_config(), keys.translated
    return base_config(), lambda key, value, _source: [(key, value)]


def _at(config: Any, key: str) -> Any:
    """The value as written: a reference to another key stays one, since it would follow that key."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def report(choice: Choice, lines: list[Line], same: int, readers: bool) -> str:
    """The lines under the overlay that sets them, which is introduced by what it says of itself."""
    words = [choice.algo, choice.size, choice.cluster, choice.engine, choice.placement, *choice.options]
    out = [f"{' · '.join(words)}: {len(lines)} keys differ from upstream, {same} more state its default"]
    overlay = heading = ""
    for line in lines:
        if line.overlay != overlay:
            overlay, heading = line.overlay, about(line.overlay)
            out.append(f"{overlay}: {heading}" if heading else overlay)
        out.append(line.shown(heading, readers))
    return "\n".join(out)


def about(overlay: str) -> str:
    """What an overlay, as `source_file` names it, says of itself; nothing for ``--set``."""
    file, _, word = overlay.partition(" (")
    if word:
        return read_options()[word.rstrip(")")].why
    path = recipes_dir().parent / file
    return _first_sentence(_header(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else ""


def main(argv: list[str]) -> int:
    """Print what differs.

    Raises:
        UserError: an unknown word or key, or a key without a reader.
    """
    p = argparse.ArgumentParser(prog="scout explain", description=(__doc__ or "").split("\n")[0])
    add_words(p)
    p.add_argument(
        "--readers", action="store_true", help="say for every key which line of the engine reads it"
    )
    args = p.parse_args(argv)
    choice = choice_of(args, sys.stderr)
    lines, same = explain(choice, [parse_setting(text) for text in args.set])
    print(report(choice, lines, same, args.readers))
    return 0
