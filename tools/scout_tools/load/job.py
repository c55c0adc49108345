"""What goes between `scout tools load-test` and the process with Locust: a job in, JSON lines out."""

from __future__ import annotations

import msgspec

from scout_tools.load.mix import Turn
from scout_tools.load.samples import Sample


class Job(msgspec.Struct):
    """On the generator's standard input.

    Attributes:
        url: base URL of the server.
        token: bearer token, "" for none.
        timeout_s: for one connection, and for each wait for the next bytes of an answer.
        rollouts: the turns of each.
    """

    url: str
    token: str
    timeout_s: float
    rollouts: list[list[Turn]]


class Answered(msgspec.Struct, tag="answered"):
    """A request ended, one way or another."""

    sample: Sample


class Played(msgspec.Struct, tag="played"):
    """A rollout has sent its last request."""


class Done(msgspec.Struct, tag="done"):
    """The last line: what the generator itself used."""

    cpu_s: float
    wall_s: float


Line = Answered | Played | Done
