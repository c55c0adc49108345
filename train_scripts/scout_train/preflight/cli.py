"""`scout preflight`: the checks alone. Takes the options of `scout train`, so that one word is exchanged."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from scout_train.preflight.finding import Finding, Verdict


def facts_of(args: argparse.Namespace, config: Any) -> Any:
    """Gather what the checks look at.

    Raises:
        UserError: model or rows cannot be read at all.
    """
    from scout_train import checks
    from scout_train.preflight.facts import Facts
    from scout_train.words import choice_of

    n_tokens = config.data.max_prompt_length + config.data.max_response_length
    return Facts(
        config=config,
        choice=choice_of(args),
        model=args.model,
        model_bytes=checks.check_model(args.model, n_tokens),
        train=args.train,
        rows=checks.enough_rows("--train", str(args.train), config.data.train_batch_size),
        tools=args.tools.rstrip("/"),
        out=args.out.resolve(),
        steps=args.steps,
        readiness=args.readiness,
        env=os.environ,
    )


def summary(findings: list[Finding], took_s: float) -> str:
    """One line: how many are ok, and which are not."""
    n_ok = sum(f.verdict is Verdict.OK for f in findings)
    rest = [
        f"{v} {', '.join(n)}"
        for v in (Verdict.WARN, Verdict.REFUSE)
        if (n := [f.name for f in findings if f.verdict is v])
    ]
    return f"preflight: {n_ok} checks ok{''.join(f' · {r}' for r in rest)} · {took_s:.1f} s"


def main(argv: list[str]) -> int:
    """Print the table, write ``preflight.json`` into ``--out``; exit status 2 where a check refuses.

    Raises:
        UserError: the first refusal, or input that cannot be read at all.
    """
    from scout_train import checks, options
    from scout_train.preflight.run import NAMES, check_names, refused, run, write

    p = options.parser("scout preflight", (__doc__ or "").split("\n")[0])
    p.add_argument(
        "--only", action="append", default=[], metavar="NAME", help=f"only these checks: {', '.join(NAMES)}"
    )
    args = p.parse_args(argv)
    check_names(args.only, "--only")
    check_names(args.skip_preflight, "--skip-preflight")
    if args.engine != "verl_tool":  # which lives in an environment of its own
        checks.check_verl()
    started = time.perf_counter()
    facts = facts_of(args, options.build_config(args))
    skip = [n for n in NAMES if n in args.skip_preflight or (args.only and n not in args.only)]
    findings = run(facts, skip)
    for finding in findings:
        print(finding.line)
    print(summary(findings, time.perf_counter() - started))
    write(findings, skip, started, facts.out / "preflight.json")
    if error := refused(findings):
        raise error
    return 0
