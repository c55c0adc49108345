"""Starts Locust in a process of its own, hands it the rollouts and takes every request's record back."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.wire import encode
from scout_tools.load.job import Answered, Done, Job, Line, Played
from scout_tools.load.mix import Turn
from scout_tools.load.samples import Sample

_LINE: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def play(
    url: str,
    plans: Sequence[Sequence[Turn]],
    token: str = "",
    done: Callable[[int], None] | None = None,
    timeout_s: float = 60.0,
) -> tuple[list[Sample], Done]:
    """Play all rollouts side by side, each with its pauses.

    Args:
        url: base URL of the server.
        token: bearer token, where the server asks for one.
        done: called with 1 at the end of every rollout.

    Returns:
        One sample per turn, and what the generator itself used.

    Raises:
        UserError: Locust is not installed, or ended early.
    """
    if importlib.util.find_spec("locust") is None:
        raise UserError("locust", "not installed", "run `make setup`, or pip install 'scout-rl[load]'")
    samples: list[Sample] = []
    used: Done | None = None
    command = [sys.executable, "-m", "scout_tools.load.locustfile"]
    # LOCUST_SKIP_MONKEY_PATCH and its like would change what is measured.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(  # noqa: S603  # our own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:  # it has ended: its log says why
                stdin.write(encode(Job(url, token, timeout_s, [list(turns) for turns in plans])))
            for raw in process.stdout:
                match _LINE.decode(raw):
                    case Answered(sample):
                        samples.append(sample)
                    case Played():
                        if done is not None:
                            done(1)
                    case Done() as used:
                        pass
        except BaseException:
            process.kill()
            raise
        process.wait()
        log.seek(0)
        last = log.read().decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode or used is None or len(samples) != sum(map(len, plans)):
        raise UserError(
            "load generator", last or "no message", f"Locust ended early with status {process.returncode}"
        )
    return samples, used
