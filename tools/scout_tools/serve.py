"""`scout serve`: N worker processes answer on one port until told to stop."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path

from scout_protocol.dialect import DIALECTS, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import STYLES
from scout_tools import limits, log
from scout_tools.backends.wiki_options import add_options, wiki_settings
from scout_tools.settings import Settings


def main(argv: list[str]) -> int:
    """Serve; returns 0 when stopped by a signal.

    Raises:
        UserError: an option, the port or the index is not usable.
    """
    start = time.monotonic()
    args = make_parser().parse_args(argv)
    log.set_format(args.log_format)
    settings = make_settings(args)
    check_backend(settings)
    limits.open_files(settings.max_connections)
    limits.token(settings.token_env)
    if args.ready_file is not None:
        _prepare_ready_file(args.ready_file)

    # Everything is imported before the fork, so that workers share these pages and start in milliseconds.
    from scout_tools.counters import Counters
    from scout_tools.sockets import listen
    from scout_tools.supervisor import Supervisor, WorkerError
    from scout_tools.worker import preload, run_worker

    opened = preload(settings)
    sockets = listen(args.host, args.port, args.workers)
    host, port = sockets[0].getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    counters = Counters(args.workers)

    def work(slot: int, report: int, life: int) -> int:
        return run_worker(settings, opened, counters, slot, sockets[slot], report, life)

    def ready() -> None:
        took = time.monotonic() - start
        if args.ready_file is not None:
            _write_ready_file(args.ready_file, url)
        print(f"scout serve: ready at {url} ({args.workers} workers, {took:.1f} s)", flush=True)

    gc.freeze()  # the collector must not touch, and so copy, what the workers share
    try:
        return Supervisor(args.workers, work, args.exit_with, settings.drain_s + 3.0).run(ready)
    except WorkerError as error:
        print(f"scout serve: {error}", file=sys.stderr)
        return 2
    finally:
        if args.ready_file is not None:
            args.ready_file.unlink(missing_ok=True)


def make_parser() -> argparse.ArgumentParser:
    """The options of the server."""
    parser = argparse.ArgumentParser(prog="scout serve", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=int, default=5000, help="0 picks a free one (default %(default)s)")
    add("--workers", type=int, default=2, help="processes (default %(default)s)")
    add("--backend", default="bm25", help="bm25, wikipedia, or module:function (default %(default)s)")
    add("--index", type=Path, help="folder made by `scout index build`; bm25 needs it")
    add("--topk", type=int, default=3, help="documents per search (default %(default)s)")
    add("--dialect", default="search-r1", help=f"one of {', '.join(sorted(DIALECTS))} (default %(default)s)")
    add("--style", help=f"one of {', '.join(STYLES)} (default search_r1; wiki with --backend wikipedia)")
    add("--max-chars", type=int, default=20_000, help="characters per observation (default %(default)s)")
    add("--timeout-s", type=float, default=30.0, help="longest search, in seconds (default %(default)s)")
    add("--max-body-mb", type=float, default=8.0, help="larger requests get a 413 (default %(default)s)")
    add(
        "--threads",
        type=int,
        default=2,
        help="threads of a worker for searches that are long or many (default %(default)s)",
    )
    add(
        "--max-response-mb",
        type=float,
        default=64.0,
        help="larger answers become a 413 (default %(default)s)",
    )
    add("--max-actions", type=int, default=1024, help="in one request (default %(default)s)")
    add(
        "--max-queue",
        type=int,
        default=2048,
        help="searches waiting per worker, else 503 (default %(default)s)",
    )
    add("--max-connections", type=int, help="per worker (default 4096, or what the descriptor limit allows)")
    add(
        "--read-timeout-s",
        type=float,
        default=30.0,
        help="for a whole request to arrive (default %(default)s)",
    )
    add("--drain-s", type=float, default=30.0, help="for accepted requests at a stop (default %(default)s)")
    add("--cache-mb", type=float, default=16.0, help="rendered answers kept per worker (default %(default)s)")
    add(
        "--token-env",
        default="",
        metavar="NAME",
        help="environment variable with the bearer token to ask for",
    )
    add("--log-format", default="text", choices=["text", "json"], help="of stderr (default %(default)s)")
    add("--ready-file", type=Path, help="write {url, pid} here once ready; removed at the end")
    add("--exit-with", type=int, metavar="PID", help="stop when this process ends, in whatever way")
    add("--record", type=Path, metavar="DIR", help="keep every answer, for --replay")
    add(
        "--replay",
        type=Path,
        metavar="DIR",
        help="answer from a record alone; a miss is an error, not a call",
    )
    add_options(parser)
    return parser


def make_settings(args: argparse.Namespace) -> Settings:
    """The options as settings.

    Raises:
        UserError: an option is out of bounds, or there is no index.
    """
    get_dialect(args.dialect)
    if args.style is None:
        args.style = "wiki" if args.backend == "wikipedia" else "search_r1"
    if args.style not in STYLES:
        raise UserError("--style", args.style, f"choose one of {', '.join(STYLES)}")
    if not 0 <= args.port <= 65535:
        raise UserError("--port", args.port, "must be between 0 and 65535")
    bounds = {"workers": (1, 256), "topk": (1, 1000), "max_chars": (1, 10**7), "threads": (1, 256)}
    bounds |= {"max_actions": (1, 100_000), "max_queue": (args.max_actions, 10**7)}
    if args.max_connections is None:
        args.max_connections = limits.default_connections()
    bounds["max_connections"] = (1, 10**6)
    for name, (low, high) in bounds.items():
        if not low <= getattr(args, name) <= high:
            raise UserError(
                f"--{name.replace('_', '-')}", getattr(args, name), f"must be between {low} and {high}"
            )
    for name in ("timeout_s", "max_body_mb", "max_response_mb", "read_timeout_s", "drain_s"):
        if not 0 < getattr(args, name) < 1e6:
            raise UserError(f"--{name.replace('_', '-')}", getattr(args, name), "must be above 0")
    if not 0 <= args.cache_mb < 1e6:
        raise UserError("--cache-mb", args.cache_mb, "must be 0 or more")
    if args.replay is not None and args.record is not None:
        raise UserError("--record", args.record, "cannot be combined with --replay: choose one")
    if args.replay is None and args.backend == "bm25" and args.index is None:
        raise UserError("--index", "not set", "give a folder made by `scout index build`")
    wiki = wiki_settings(args) if args.replay is None and args.backend == "wikipedia" else None
    return Settings(
        index=args.index or Path(),
        backend=args.backend,
        dialect=args.dialect,
        style=args.style,
        topk=args.topk,
        max_chars=args.max_chars,
        timeout_s=args.timeout_s,
        max_body_bytes=int(args.max_body_mb * (1 << 20)),
        max_response_bytes=int(args.max_response_mb * (1 << 20)),
        max_actions=args.max_actions,
        max_queue=args.max_queue,
        max_connections=args.max_connections,
        read_timeout_s=args.read_timeout_s,
        drain_s=args.drain_s,
        cache_bytes=int(args.cache_mb * (1 << 20)),
        token_env=args.token_env,
        threads=args.threads,
        wiki=wiki,
        record=args.record,
        replay=args.replay,
    )


def check_backend(settings: Settings) -> None:
    """What can be known to be wrong before any worker starts.

    Raises:
        UserError: there is no index, or no record, where the settings say.
    """
    if settings.replay is not None:
        from scout_tools.record import read_record_meta

        read_record_meta(settings.replay)
    elif settings.backend == "bm25":
        from scout_tools.index_meta import read_meta

        read_meta(settings.index)
    if settings.wiki is not None and settings.wiki.insecure_tls_hosts:
        names = ", ".join(settings.wiki.insecure_tls_hosts)
        log.say("warning", "insecure_tls", f"WARNING: TLS verification is off for {names}")


def _prepare_ready_file(path: Path) -> None:
    """Whoever waits for the file must not find one of an earlier run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError("--ready-file", path, f"cannot be written ({error.strerror})") from error


def _write_ready_file(path: Path, url: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError("--ready-file", path, f"cannot be written ({error.strerror})") from error
