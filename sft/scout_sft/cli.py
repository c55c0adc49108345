"""`scout sft init|harvest|train|readiness`: arguments; heavy modules are imported on use."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scout_protocol.dialect import DIALECTS
from scout_protocol.errors import UserError
from scout_sft import readiness_cli


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scout sft", description=__doc__.split(":")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="init|harvest|train|readiness")
    style = argparse.ArgumentDefaultsHelpFormatter

    init = commands.add_parser(
        "init", help="make a tiny model and its tokenizer from nothing", formatter_class=style
    )
    init.add_argument("--corpus", type=Path, required=True, help="documents, JSONL {id, title, text}")
    init.add_argument("--rows", type=Path, required=True, help="RL rows, parquet: how questions are worded")
    init.add_argument("--out", type=Path, required=True, help="folder of the model; must not exist")
    init.add_argument("--vocab", type=int, default=2048, help="most tokens")
    init.add_argument(
        "--min-frequency", type=int, default=8, help="occurrences of a pair that becomes a token"
    )
    init.add_argument("--hidden", type=int, default=128, help="channels")
    init.add_argument("--layers", type=int, default=3, help="layers")
    init.add_argument("--heads", type=int, default=4, help="attention heads")
    init.add_argument("--max-positions", type=int, default=4096, help="longest context, tokens")
    init.add_argument("--seed", type=int, default=0, help="of the weights")
    init.add_argument(
        "--dialect", default="search-r1", choices=sorted(DIALECTS), help="whose markers are tokens"
    )

    harvest = commands.add_parser(
        "harvest", help="demonstrations from the tool server", formatter_class=style
    )
    harvest.add_argument("--rows", type=Path, required=True, help="RL rows with plans, parquet")
    harvest.add_argument(
        "--out", type=Path, required=True, help="demonstrations, parquet; OUT.jsonl beside it"
    )
    harvest.add_argument("--server", default="http://127.0.0.1:5000", help="tool server")
    harvest.add_argument(
        "--tools-token-env", default="", metavar="NAME", help="variable with the tool server's bearer token"
    )
    harvest.add_argument("--limit", type=int, default=0, help="play the first so many rows; 0 plays all")
    harvest.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="NAME[=SHARE]",
        help="plan (extra_info.oracle), golden, keywords, bridge, or policy; repeatable (default plan)",
    )
    harvest.add_argument("--policy", default="", help="of --strategy policy: hf:PATH or openai:MODEL@URL")
    harvest.add_argument("--samples", type=int, default=4, help="tries per question of --strategy policy")
    harvest.add_argument("--temperature", type=float, default=1.0, help="of --strategy policy")
    harvest.add_argument("--max-turns", type=int, default=6, help="of --strategy policy")
    harvest.add_argument("--max-turn-tokens", type=int, default=256, help="of --strategy policy")
    harvest.add_argument("--max-response-tokens", type=int, default=2048, help="of --strategy policy")
    harvest.add_argument("--max-obs-tokens", type=int, default=512, help="of --strategy policy")
    harvest.add_argument("--searches", metavar="LOW-HIGH", help="of bridge, keywords: spread, e.g. 1-5")
    harvest.add_argument(
        "--long-chain-repeat", type=int, default=1, help="write a long chain so many times (over-sampling)"
    )
    harvest.add_argument("--long-chain-from", type=int, default=3, help="searches that make a long chain")
    harvest.add_argument(
        "--max-revealing-share", type=float, default=0.2, help="most that put the answer into a query first"
    )
    harvest.add_argument(
        "--exclude", type=Path, action="append", default=[], help="rows not to demonstrate: RL validation"
    )
    harvest.add_argument(
        "--early-stop-share", type=float, default=0.6, help="stop too early, at each place they could"
    )
    harvest.add_argument(
        "--keep-unfound", action="store_true", help="keep those whose answer no result holds"
    )
    harvest.add_argument("--seed", type=int, default=0, help="of the choice which stop early")
    harvest.add_argument("--concurrency", type=int, default=64, help="questions at once")
    harvest.add_argument("--call-timeout-s", type=float, default=30.0, help="seconds for one search")
    harvest.add_argument("--retries", type=int, default=3, help="rounds without any answer before giving up")
    harvest.add_argument(
        "--dialect", default="search-r1", choices=sorted(DIALECTS), help="of the demonstrations"
    )

    train = commands.add_parser("train", help="the warm-up, by verl's SFT trainer", formatter_class=style)
    train.add_argument("--model", type=Path, required=True, help="Hugging Face folder to start from")
    train.add_argument("--demos", type=Path, required=True, help="demonstrations, parquet")
    train.add_argument("--out", type=Path, required=True, help="folder of the run; the result is OUT/hf")
    train.add_argument(
        "--steps", type=int, default=0, help="optimizer steps, fixed; 0: it stops by itself (--stop)"
    )
    train.add_argument("--epochs", type=float, default=3.0, help="without --steps: passes at most")
    train.add_argument(
        "--stop",
        default="auto",
        choices=("auto", "never", "loss", "format", "both"),
        help="loss: the validation loss no longer falls; format: rollouts keep it; auto: never with --steps, "
        "else loss, and format with --probe-rows",
    )
    train.add_argument("--stop-patience", type=int, default=3, help="validations without a lower loss")
    train.add_argument("--stop-min-delta", type=float, default=0.005, help="share of it that is lower")
    train.add_argument("--stop-format", type=float, default=0.95, help="share of well-formed rollouts")
    train.add_argument("--stop-em", type=float, default=0.0, help="and of right ones")
    train.add_argument("--probe-rows", default="", help="RL rows, parquet, to sample rollouts of: held out")
    train.add_argument("--server", default="http://127.0.0.1:5000", help="tool server of the rollouts")
    train.add_argument(
        "--tools-token-env", default="", metavar="NAME", help="variable with the tool server's bearer token"
    )
    train.add_argument("--probe-samples", type=int, default=4, help="rollouts of each question")
    train.add_argument("--probe-limit", type=int, default=32, help="questions")
    train.add_argument("--probe-max-turns", type=int, default=4, help="policy turns of a rollout")
    train.add_argument("--probe-max-turn-tokens", type=int, default=256, help="tokens of a turn")
    train.add_argument("--probe-max-response-tokens", type=int, default=2048, help="tokens of a rollout")
    train.add_argument("--lora-rank", type=int, default=0, help="train adapters of this rank; 0: all weights")
    train.add_argument("--lora-alpha", type=int, default=0, help="their scale; 0: twice the rank")
    train.add_argument("--batch", type=int, default=16, help="demonstrations per step")
    train.add_argument("--lr", type=float, default=3e-3, help="highest learning rate")
    train.add_argument(
        "--schedule", default="cosine", choices=("constant", "cosine"), help="after the warm-up steps"
    )
    train.add_argument("--warmup-steps", type=int, default=30, help="steps of rising learning rate")
    train.add_argument("--weight-decay", type=float, default=0.0, help="AdamW's")
    train.add_argument("--seed", type=int, default=0, help="of order and hold-out")
    train.add_argument(
        "--dialect", default="search-r1", choices=sorted(DIALECTS), help="of the demonstrations"
    )
    train.add_argument("--max-length", type=int, default=2048, help="longest demonstration, tokens")
    train.add_argument(
        "--max-obs-tokens", type=int, default=512, help="the rollouts' limit for one observation"
    )
    train.add_argument(
        "--overlong", default="error", choices=("error", "drop", "cut"), help="longer demonstrations"
    )
    train.add_argument("--val-share", type=float, default=0.02, help="share held out for the validation loss")
    train.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    train.add_argument("--val-every", type=int, default=50, help="steps between validations")
    train.add_argument(
        "--keep",
        default="auto",
        choices=("auto", "last", "best"),
        help="checkpoint to export; best: by pass@1 of probes, else by validation loss; auto: best where a "
        "rule may stop the run, else last",
    )
    train.add_argument(
        "--demos-per-pass", type=int, default=8, help="CPU: demonstrations in one forward pass"
    )
    train.add_argument("--max-tokens-per-pass", type=int, default=16_384, help="accelerator: tokens in one")
    train.add_argument("--nproc", type=int, default=1, help="processes; more than one go through torchrun")
    train.add_argument("--threads", type=int, default=1, help="torch threads of a process")
    train.add_argument("--device", default="cpu", choices=("cpu", "cuda", "npu"), help="kind of device")
    train.add_argument(
        "--stall-timeout-s", type=float, default=600.0, help="longest silence before giving up"
    )
    train.add_argument(
        "--platform-module", default="scout_train.cpu.platform", help="verl platform plug-in, CPU"
    )
    train.add_argument("--external-lib", default="scout_train.cpu.plugin", help="verl engine plug-in, CPU")
    train.add_argument(
        "--set", dest="overrides", action="append", default=[], help="key=value of verl's SFT config"
    )
    readiness_cli.add(commands, style)
    return parser


def main(argv: list[str]) -> int:
    """Run one command; returns the exit status."""
    options = vars(_parser().parse_args(argv))
    command = options.pop("command")
    if command == "init":
        return _init(**options)
    if command == "harvest":
        return _harvest(**options)
    if command == "readiness":
        return readiness_cli.run(options)
    return _train(**options)


def _init(corpus: Path, rows: Path, out: Path, dialect: str, **sizes: int) -> int:
    from scout_data.rows import read_rows
    from scout_sft.tiny_model import TinySpec, init_model, read_corpus

    facts = init_model(read_corpus(corpus), read_rows(rows), out, TinySpec(**sizes), dialect)
    print(
        f"{out}: {facts['parameters']:,} parameters, {facts['vocab']} tokens; "
        f"{facts['title_words_one_token']} of {facts['title_words']} words of titles are one token"
    )
    return 0


def _harvest(
    rows: Path,
    out: Path,
    limit: int,
    strategy: list[str],
    searches: str | None,
    exclude: list[Path],
    **options: object,
) -> int:
    from scout_data.rows import read_rows
    from scout_sft.card import write_card
    from scout_sft.harvest import HarvestSettings, harvest
    from scout_sft.strategies import parse_shares
    from scout_sft.unique import unique

    settings = HarvestSettings(
        strategies=tuple(parse_shares("--strategy", strategy).items()),
        searches=_low_high(searches),
        **options,  # type: ignore[arg-type]
    )
    questions, left_out = unique(read_rows(rows), exclude)
    result = harvest(questions[:limit] if limit > 0 else questions, out, settings)
    by_number = ", ".join(f"{n} with {k}" for k, n in result.searches.items())
    print(f"{out}: {result.kept} demonstrations ({result.early} stop too early); searches: {by_number}")
    for name, n in left_out.items():
        print(f"left out, {name}: {n}")
    for name, counts in result.by_strategy.items():
        share = counts["in context"] / counts["questions"]
        print(
            f"{name}: answer in the results of {counts['in context']} of {counts['questions']} questions "
            f"({share:.1%}), {counts['kept']} kept"
        )
    print(f"query reveals the answer: {result.revealing} of {result.kept}")
    if result.repeated:
        print(f"copies of long chains: {result.repeated}")
    for reason, n in result.rejected.items():
        print(f"rejected, {reason}: {n}")
    if result.resumed:
        print(f"{result.resumed} of them from an earlier run")
    write_card(out, result, left_out)
    return 0


def _low_high(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not low.isdecimal() or not high.isdecimal():
        raise UserError("--searches", text, "give two numbers, e.g. 1-5")
    return int(low), int(high)


def _train(model: Path, demos: Path, out: Path, overrides: list[str], **options: object) -> int:
    from scout_sft.train import train
    from scout_sft.verl_config import TrainSettings

    result = train(model, demos, out, TrainSettings(overrides=tuple(overrides), **options))  # type: ignore[arg-type]
    print(f"{out / 'hf'}: {json.dumps(result)}")
    return 0
