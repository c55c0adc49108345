"""The words of a command line that name a recipe: one definition for train, explain, plan and preflight."""

from __future__ import annotations

import argparse
import sys
from typing import Any, TextIO

from scout_train.cluster import detect, engine_for
from scout_train.compose import KINDS, Choice, names, read_options


class ListWords(argparse.Action):
    """``--list-words``: every word of recipes/options.yaml with its reason and its keys, and nothing else."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: Any, **_kwargs: Any) -> None:
        for word, option in read_options().items():
            print(f"{word}: {option.why}")
            for key, value in option.keys.items():
                print(f"    {key}: {value}")
        parser.exit()


def add_words(p: argparse.ArgumentParser) -> None:
    """``--algo`` to ``--placement``, ``--with``, ``--list-words`` and ``--set``."""
    for kind in KINDS:
        default = {"cluster": "what this machine has", "engine": "the cluster's"}.get(kind)
        value = None if default else getattr(Choice(), kind)
        p.add_argument(
            f"--{kind}", default=value, help=f"{', '.join(names(kind))} (default {default or value})"
        )
    p.add_argument(
        "--with",
        dest="options",
        action="extend",
        nargs="+",
        default=[],
        metavar="WORD",
        help="words of recipes/options.yaml, such as kl or clip_03 (--list-words shows them)",
    )
    p.add_argument(
        "--list-words", action=ListWords, nargs=0, help="say what each word of --with does, and why"
    )
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override any key of the recipe"
    )


def choice_of(args: argparse.Namespace, stream: TextIO | None = None) -> Choice:
    """The recipe that was asked for; the cluster is what this machine has unless it was named.

    A cluster that was not named is told on ``stream`` (stdout).
    """
    cluster = args.cluster
    if cluster is None:
        cluster, why = detect()
        print(f"cluster {cluster} ({why})", file=stream or sys.stdout, flush=True)
        args.cluster = cluster
    args.engine = args.engine or engine_for(cluster)
    return Choice(args.algo, args.size, cluster, args.engine, args.placement, tuple(args.options))
