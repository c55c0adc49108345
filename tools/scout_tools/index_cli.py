"""`scout index`: build, inspect, evaluate and search a BM25 index."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from types import FrameType

from scout_protocol.errors import UserError


def main(argv: list[str]) -> int:
    """Run one subcommand.

    Raises:
        UserError: a file, column, folder or option is not usable.
    """
    args = _parser().parse_args(argv)
    commands = {"build": _build, "info": _info, "verify": _verify, "eval": _eval}
    commands |= {"search": _search, "passages": _passages}
    return int(commands[args.command](args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scout index", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    build = commands.add_parser(
        "build", help="make an index of passages; an existing one is replaced at the end"
    )
    build.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="JSON lines or JSON, also .gz")
    build.add_argument(
        "--format", default="auto", help="auto, jsonl, wiki18, contexts or hotpot (default auto)"
    )
    build.add_argument(
        "--keep-duplicates", action="store_true", help="keep passages with equal title and text"
    )
    info = commands.add_parser("info", help="print the facts about an index")
    verify = commands.add_parser("verify", help="read all files of an index: are they what was written?")
    evaluate = commands.add_parser("eval", help="recall of supporting titles on HotpotQA questions")
    evaluate.add_argument("--questions", type=Path, required=True, help="HotpotQA file")
    evaluate.add_argument(
        "--keep-stop-words", action="store_true", help="search for every word of a question"
    )
    evaluate.add_argument("--limit", type=int, default=0, help="only the first N questions")
    search = commands.add_parser("search", help="print the best passages for a query")
    search.add_argument("query")
    search.add_argument("--topk", type=int, default=3)
    passages = commands.add_parser("passages", help="write the passages of any source as {id,title,text}")
    passages.add_argument("source", type=Path, metavar="SOURCE", help="JSON lines or JSON, also .gz")
    passages.add_argument(
        "--format", default="auto", help="auto, jsonl, wiki18, contexts or hotpot (default auto)"
    )
    passages.add_argument("--output", type=Path, required=True, help="JSON lines to write")
    for command in (build, info, verify, evaluate, search):
        command.add_argument("--index", type=Path, required=True, help="folder of the index")
    return parser


def _build(args: argparse.Namespace) -> int:
    from scout_tools.index import build_index
    from scout_tools.progress import bar

    # An ordinary `kill` must clean up like Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    start = time.monotonic()
    total = sum(path.stat().st_size for path in args.sources if path.is_file())
    with bar("indexing", total, unit_is_bytes=True) as advance:
        meta = build_index(
            args.index, args.sources, args.format, keep_duplicates=args.keep_duplicates, on_bytes=advance
        )
    took = time.monotonic() - start
    dropped = f", {meta.n_duplicates} duplicates dropped" if meta.n_duplicates else ""
    print(f"{args.index}: {meta.n_documents} passages{dropped}, {took:.1f} s")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _info(args: argparse.Namespace) -> int:
    from scout_tools.index_meta import read_meta

    meta = read_meta(args.index)
    data = args.index / meta.data
    size_mb = sum(path.stat().st_size for path in data.iterdir()) / 1e6
    print(f"passages     {meta.n_documents} ({meta.n_duplicates} duplicates dropped)")
    print(f"size         {size_mb:.1f} MB")
    print(f"created      {meta.created}")
    print(f"format       {meta.format_version}, tantivy {meta.tantivy_version}, {meta.tokenizer}")
    print(f"fingerprint  {meta.fingerprint}")
    for source in meta.sources:
        print(f"source       {source.name} ({source.format}, {source.bytes} bytes, sha256 {source.sha256})")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from scout_tools.index_files import DamagedError, IndexFiles
    from scout_tools.index_meta import read_meta

    meta = read_meta(args.index)
    start = time.monotonic()
    try:
        files = IndexFiles(args.index / meta.data, meta.files)
        files.verify()
    except DamagedError as error:
        raise _unreadable(args.index, error) from error
    size, took = f"{len(meta.files)} files, {files.bytes / 1e6:.1f} MB", time.monotonic() - start
    print(f"{args.index}: {size} as they were written, {took:.1f} s")
    return 0


def _eval(args: argparse.Namespace) -> int:
    from scout_tools.backends.base import BackendError
    from scout_tools.backends.bm25 import BM25Backend
    from scout_tools.index_eval import evaluate, read_questions
    from scout_tools.progress import bar
    from scout_tools.stopwords import STOP_WORDS

    questions = read_questions(args.questions)
    if args.limit > 0:
        questions = questions[: args.limit]
    backend = BM25Backend(args.index, stop_words=() if args.keep_stop_words else STOP_WORDS)
    start = time.monotonic()
    try:
        with bar("searching", len(questions)) as advance:
            quality = evaluate(backend, questions, lambda: advance(1))
    except BackendError as error:
        raise _unreadable(args.index, error) from error
    ms = (time.monotonic() - start) * 1000 / quality.n_questions
    print(f"questions                {quality.n_questions}")
    for k, value in quality.recall.items():
        print(f"recall@{k:<2} of titles      {value:.3f}")
    print(f"all titles in top 10     {quality.all_at_10:.3f}")
    print(f"time per question        {ms:.2f} ms")
    return 0


def _unreadable(index: Path, error: Exception) -> UserError:
    return UserError(
        "index", index, f"is damaged ({error}); rebuild it: scout index build --index {index} SOURCE"
    )


def _search(args: argparse.Namespace) -> int:
    from scout_tools.backends.base import BackendError
    from scout_tools.backends.bm25 import BM25Backend

    if not args.query.strip():
        raise UserError("query", repr(args.query), "must not be empty")
    if args.topk < 1:
        raise UserError("--topk", args.topk, "must be at least 1")
    try:
        (documents,) = BM25Backend(args.index).search_now([args.query], args.topk)
    except BackendError as error:
        raise _unreadable(args.index, error) from error
    for document in documents:
        print(f"{document.score:7.3f}  {document.title}  [{document.id}]\n         {document.text}")
    if not documents:
        print("no passage holds any of these words")
    return 0


def _passages(args: argparse.Namespace) -> int:
    import msgspec

    from scout_tools.corpus import SourceFile

    temporary = args.output.with_name(args.output.name + ".tmp")
    source = SourceFile(args.source)
    n = 0
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for n, passage in enumerate(source.passages(args.format), start=1):
                row = {"id": passage.id or str(n), "title": passage.title, "text": passage.text}
                file.write(msgspec.json.encode(row) + b"\n")
        temporary.replace(args.output)
    except OSError as error:
        raise UserError("--output", args.output, f"{error.strerror}: choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)
        source.close()
    print(f"{args.output}: {n} passages")
    return 0
