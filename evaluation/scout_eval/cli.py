"""``scout eval``: run, show, card, compare, algos, suite, export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scout_eval.run_cli import run_config, run_options

if TYPE_CHECKING:
    from scout_eval.sheet import Sheet


def parser() -> argparse.ArgumentParser:
    """The command line, importing nothing heavy."""
    top = argparse.ArgumentParser(prog="scout eval", description="Evaluate a policy through the tool server.")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="{run,show,card,compare,algos,suite,export}"
    )
    run_options(commands.add_parser("run", help="play the questions, write traces.jsonl and summary.json"))
    show = commands.add_parser(
        "show", help="print the numbers of a finished evaluation, or of all under a folder"
    )
    show.add_argument("folder", type=Path)
    _card_options(commands.add_parser("card", help="all numbers of a finished evaluation, with fingerprint"))
    _compare_options(commands.add_parser("compare", help="two evaluations on the same questions"))
    algos = commands.add_parser("algos", help="several algorithms from one warm-up, side by side")
    algos.add_argument("folder", type=Path, help="what scout compare-algos left, e.g. runs/compare")
    algos.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for algos.json, algos.md, algos.html (default: the same)",
    )
    _suite_options(commands.add_parser("suite", help="the field's seven question sets by name"))
    _export_options(commands.add_parser("export", help="verl checkpoint -> checked Hugging Face folder"))
    return top


def _card_options(card: argparse.ArgumentParser) -> None:
    card.add_argument("folder", type=Path, help="folder of the evaluation; controls stand beside it")
    card.add_argument("--tools", metavar="URL", help="measure the retrieval ceiling on this tool server")
    card.add_argument(
        "--tools-token-env", default="", metavar="NAME", help="variable with the tool server's bearer token"
    )
    card.add_argument("--rows", type=Path, help="the evaluated rows, where they have moved")
    card.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for card.json, card.md, card.html (default: the evaluation's)",
    )


def _compare_options(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("a", type=Path, metavar="A", help="folder of one evaluation")
    compare.add_argument("b", type=Path, metavar="B", help="folder of the other: differences are B minus A")
    compare.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    compare.add_argument("--show", type=int, default=10, metavar="N", help="questions to print (default: 10)")
    compare.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for compare.json, compare.md, compare.html"
    )


def _suite_options(suite: argparse.ArgumentParser) -> None:
    commands = suite.add_subparsers(dest="suite_command", required=True, metavar="{list,rows,card}")
    commands.add_parser("list", help="the sets, their sizes, splits and origins")
    rows = commands.add_parser("rows", help="RL rows of one set")
    rows.add_argument("set", help="nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique or bamboogle")
    rows.add_argument(
        "--input",
        type=Path,
        help="file of the set, or a copy of FlashRAG's folder (default: from the Hugging Face hub)",
    )
    rows.add_argument("--format", default="auto", help="shape of the file (default: auto)")
    rows.add_argument("--revision", help="commit of the hub's copy")
    rows.add_argument("--prompt", default="search_r1", help="prompt file (default: search_r1)")
    rows.add_argument("--limit", type=int, help="keep at most this many")
    rows.add_argument("--seed", type=int, help="shuffle with this seed before --limit (default: file order)")
    rows.add_argument("--output", type=Path, required=True, help="parquet to write")
    card = commands.add_parser("card", help="one table over the sets evaluated under a folder")
    card.add_argument("folder", type=Path)
    card.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for suite.md and suite.html (default: the same)"
    )


def _export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument("--checkpoint", type=Path, required=True, help="global_step_N, or a run's folder")
    export.add_argument("--out", type=Path, required=True, help="model folder to write")
    export.add_argument("--model", type=Path, help="model that training started from: its tokenizer is kept")
    export.add_argument("--rows", type=Path, help="RL rows whose prompts are played")
    export.add_argument("--prompts", type=int, default=16, help="how many prompts at most (default: 16)")
    export.add_argument("--max-tokens", type=int, default=64, help="of each answer (default: 64)")


def main(argv: list[str]) -> int:
    """Run one command."""
    args = parser().parse_args(argv)
    handlers = {
        "run": _run,
        "show": _show,
        "card": _card,
        "compare": _compare,
        "algos": _algos,
        "suite": _suite,
        "export": _export,
    }
    handlers[args.command](args)
    return 0


def _show(args: argparse.Namespace) -> None:
    from scout_eval.show import show

    show(args.folder)


def _card(args: argparse.Namespace) -> None:
    from scout_eval.card import load_card
    from scout_eval.card_sheet import card_sheet

    card = load_card(args.folder, args.tools, args.rows, args.tools_token_env)
    _publish(card_sheet(card), card, args.out or args.folder, "card")


def _compare(args: argparse.Namespace) -> None:
    from scout_eval.compare import compare
    from scout_eval.compare_sheet import compare_sheet

    found = compare(args.a, args.b, args.seed)
    _publish(compare_sheet(found), found, args.out, "compare", args.show)


def _algos(args: argparse.Namespace) -> None:
    from scout_eval.algos import load_algos
    from scout_eval.algos_sheet import algos_sheet

    runs = load_algos(args.folder)
    sheet = algos_sheet(args.folder.name, runs)
    _publish(sheet, [run.result for run in runs], args.out or args.folder, "algos")


def _suite(args: argparse.Namespace) -> None:
    from scout_eval.suite import benchmark, list_sheet, load_suite, suite_rows, suite_sheet

    if args.suite_command == "list":
        _publish(list_sheet(), None, None, "suite")
    elif args.suite_command == "card":
        cards = load_suite(args.folder)
        _publish(suite_sheet(args.folder, cards), cards, args.out or args.folder, "suite")
    else:
        rows, n, path = suite_rows(
            args.set, args.output, args.input, args.prompt, args.limit, args.seed, args.format, args.revision
        )
        expected = benchmark(args.set).n
        note = "" if n == expected else f"; the published split has {expected:,}: not the whole set"
        print(f"{len(rows):,} of {n:,} questions ({path}{note}) -> {args.output}")


def _export(args: argparse.Namespace) -> None:
    from scout_eval.export import describe, export

    print(describe(export(args.checkpoint, args.out, args.model, args.rows, args.prompts, args.max_tokens)))


def _publish(sheet: Sheet, value: object, out: Path | None, name: str, max_items: int = 10) -> None:
    """Print a sheet, and write it as JSON, Markdown and HTML where a folder is named."""
    from rich.console import Console

    from scout_eval.report_cli import write_text
    from scout_eval.sheet_html import sheet_page
    from scout_eval.sheet_text import markdown, print_sheet
    from scout_eval.summary import write_json
    from scout_protocol.errors import UserError

    if out is not None:  # first the files: whoever reads the terminal's lines may stop reading
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / f"{name}.json", value)
        except OSError as error:
            raise UserError("out", out, f"{error.strerror}: choose a writable folder") from error
        write_text(out / f"{name}.md", markdown(sheet))
        write_text(out / f"{name}.html", sheet_page(sheet))
    print_sheet(sheet, Console(highlight=False), max_items)
    if out is not None:
        print(f"\n{name}: {out}/{name}.json, {name}.md, {name}.html")


def _run(args: argparse.Namespace) -> None:
    from scout_eval.run import run_eval
    from scout_eval.show import show

    run_eval(run_config(args))
    show(args.out)
