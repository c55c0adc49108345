"""`make bench-data`: split, audit and mix of 169,615 rows, the size of Search-R1's training file, timed.

The rows are made here: 79,168 of one source, then 90,447 of the other, as published; questions and answers of
real files where they are given, else of the made-up world, told apart by a number. Making them is not timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scout_data.manifest import write_manifest
from scout_data.readers import load_rows
from scout_data.rows import make_row, write_rows
from scout_protocol.records import RLRow

BLOCKS = (("nq", 79_168), ("hotpotqa", 90_447))  # Search-R1's file, in its order
LIMIT_S, LIMIT_GIB = 60.0, 2.0
# Qwen2's pre-tokenizer and chat template, so that lengths cost what they cost there
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def questions(files: Sequence[Path]) -> dict[str, list[RLRow]]:
    """Real questions by source; the world's for a source without a file."""
    from scout_data.world import make_world

    found: dict[str, list[RLRow]] = {}
    for path in files:
        for row in load_rows(path, prompt_name="brief"):
            found.setdefault(row.data_source, []).append(row)
    world = make_world(0)
    for (name, _), hops in zip(BLOCKS, (1, 2), strict=True):
        if name not in found:
            asked = world.sample_questions("train", hops, 500, 0)
            found[name] = [
                make_row(q.text, [q.answer], "brief", name, "train", i) for i, q in enumerate(asked)
            ]
    return found


def many(found: dict[str, list[RLRow]], scale: float) -> Iterator[RLRow]:
    """``scale`` x 169,615 rows in two blocks, no question twice."""
    for name, n in BLOCKS:
        for i, row in enumerate(itertools.islice(itertools.cycle(found[name]), round(n * scale))):
            text = f"{row.question.rstrip('?')} (case {i})?"
            extra = {k: v for k, v in row.extra_info.items() if k in ("type", "level")}
            yield make_row(text, row.golden_answers, "system_user", name, "train", i, extra)


def tokenizer_folder(rows: Sequence[RLRow], out: Path) -> Path:
    """A byte-level BPE with Qwen2's splitting and template, trained on these questions."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [m["content"] for row in rows[:: max(1, len(rows) // 5000)] for m in row.prompt]
    tokenizer.train_from_iterator(texts, trainer)
    marks = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    fast.chat_template = _CHAT
    fast.save_pretrained(out)
    return out


def build(files: Sequence[Path], scale: float, folder: Path, train_tokenizer: bool) -> int:
    """Write the rows, and the tokenizer if none was given."""
    rows = list(many(questions(files), scale))
    write_rows(folder / "all.parquet", rows)
    write_manifest(folder / "all.parquet", rows, "system_user", [], None)
    if train_tokenizer:
        tokenizer_folder(rows, folder / "tokenizer")
    return 0


def timed(argv: Sequence[str]) -> dict[str, Any]:
    """Run `scout data …` as a user does; its wall time, CPU time and peak memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, "-m", "scout_cli.main", "data", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "command": argv[0],
        "status": done.returncode,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_gib": round(after.ru_maxrss / 2**20, 2),  # of the largest child so far
        "said": (done.stdout + done.stderr).strip().splitlines()[-1:],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """0 if everything stays within 60 s and 2 GB together, else 1."""
    parser = argparse.ArgumentParser(prog="python -m scout_data.bench", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="NQ and HotpotQA files to take questions from")
    parser.add_argument("--tokenizer", help="model folder (default: a Qwen2-like one, trained here)")
    parser.add_argument("--scale", type=float, default=1.0, help="of 169,615 rows (default 1)")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.build:
        return build(args.files, args.scale, args.build, train_tokenizer=not args.tokenizer)
    with tempfile.TemporaryDirectory(prefix="scout-bench-") as name:
        folder = Path(name)
        source = folder / "all.parquet"
        # in a process of its own: a child's peak memory is never reported below its parent's size
        command = [sys.executable, "-m", "scout_data.bench", *map(str, args.files), "--build", name]
        command += ["--scale", str(args.scale), *(["--tokenizer", args.tokenizer] if args.tokenizer else [])]
        subprocess.run(command, check=True)  # noqa: S603
        count = json.loads(source.with_suffix(".manifest.json").read_text(encoding="utf-8"))["rows"]
        tokenizer = args.tokenizer or str(folder / "tokenizer")
        split, mixed = folder / "split", folder / "mixed.parquet"
        steps = [
            timed(["split", "--input", str(source), "--out", str(split)]),
            timed(
                ["mix", "--input", str(split / "train.parquet"), "--output", str(mixed), "--order", "batches"]
            ),
            timed(["audit", str(mixed), "--tokenizer", tokenizer]),
        ]
    for step in steps:
        print(json.dumps(step))
    wall_s = sum(step["wall_s"] for step in steps)
    peak_gib = max(step["peak_gib"] for step in steps)
    good = wall_s <= LIMIT_S and peak_gib * 2**30 <= LIMIT_GIB * 1e9 and all(not s["status"] for s in steps)
    print(
        f"{count:,} rows on {len(os.sched_getaffinity(0))} cores: {wall_s:.1f} s (limit {LIMIT_S:.0f}), "
        f"peak {peak_gib:.2f} GiB (limit {LIMIT_GIB * 1e9 / 2**30:.2f}): {'within' if good else 'NOT within'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
