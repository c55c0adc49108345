"""`scout world make`: the made-up world as files: a corpus, and rows to warm up, train and evaluate."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt
from scout_protocol.records import RLRow

DATA_SOURCE = "scout_world"
# file -> (split of the world, how many 1-, 2- and 3-hop questions by default)
FILES: dict[str, tuple[str, tuple[int, int, int]]] = {
    "sft": ("train", (1600, 1600, 1600)),
    "train": ("train", (400, 800, 800)),
    "held_out": ("held_out", (100, 100, 100)),
}


def _counts(text: str) -> tuple[int, int, int]:
    try:
        one, two, three = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers such as 100,100,100") from None
    if min(one, two, three) < 0 or one + two + three == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: no number may be negative, and one must be positive")
    return one, two, three


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scout world", description="The made-up world as files.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="make")
    make = commands.add_parser("make", help="write corpus.jsonl and three row files, each with a manifest")
    make.add_argument("--out", type=Path, required=True, help="folder for the files")
    make.add_argument("--seed", type=int, default=0, help="of names, facts and questions (default 0)")
    make.add_argument("--prompt", default="brief", help="prompt file for the rows (default brief)")
    for name, (split, counts) in FILES.items():
        default = ",".join(map(str, counts))
        option = f"--{name.replace('_', '-')}"
        help_text = (
            f"1-, 2- and 3-hop questions in {name}.parquet, from the {split} entities (default {default})"
        )
        make.add_argument(option, type=_counts, default=counts, metavar="N1,N2,N3", help=help_text)
    return parser


def make_files(out: Path, seed: int, prompt: str, counts: dict[str, tuple[int, int, int]]) -> dict[str, int]:
    """Write ``corpus.jsonl`` and one parquet per entry of ``counts``; returns the number of lines of each.

    Raises:
        UserError: unknown prompt, more questions than the world has, an unwritable folder.
    """
    from scout_data.manifest import write_manifest
    from scout_data.rows import make_row, write_rows
    from scout_data.world import HOPS, make_world

    load_prompt(prompt)
    world = make_world(seed)
    rows: dict[str, list[RLRow]] = {}
    for name, numbers in counts.items():
        split = FILES[name][0]
        questions = [
            question
            for hops, n in zip(HOPS, numbers, strict=True)
            for question in world.sample_questions(split, hops, n, seed)
        ]
        rows[name] = [
            make_row(
                question.text,
                [question.answer],
                prompt,
                DATA_SOURCE,
                split,
                index,
                {
                    "hops": question.hops,
                    "oracle": question.oracle(),
                    "supporting_titles": list(question.titles),
                    "question": question.text,
                },
            )
            for index, question in enumerate(questions)
        ]
    corpus, written = out / "corpus.jsonl", {"corpus": 0}
    temporary = corpus.with_suffix(".tmp")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            for document in world.documents():
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
                written["corpus"] += 1
        temporary.replace(corpus)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        remedy = "free some disk space, or choose another folder"
        raise UserError("--out", out, f"cannot be written: {error.strerror}: {remedy}") from error
    for name, part in rows.items():
        path = out / f"{name}.parquet"
        write_rows(path, part)
        write_manifest(path, part, prompt, [], seed, {"questions_by_hops": list(counts[name])})
        written[name] = len(part)
    return written


def main(argv: list[str]) -> int:
    """Run one command; returns the exit status."""
    args = _parser().parse_args(argv)
    counts = {name: getattr(args, name) for name in FILES}
    written = make_files(args.out, args.seed, args.prompt, counts)
    print(
        f"{args.out}: {written['corpus']} documents; questions: "
        + ", ".join(f"{written[name]} in {name}.parquet" for name in FILES)
    )
    return 0
