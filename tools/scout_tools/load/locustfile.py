"""Plays rollouts with Locust: a `Job` on stdin, one `Line` per event on stdout.

Run as ``python -m scout_tools.load.locustfile`` by `generate.py`, imported by nobody: importing Locust puts
gevent in the place of sockets, threads and sleep, for the whole process. Locust is used as a library
(docs.locust.io, "Using Locust as a library"), so no locust.conf, no LOCUST_ variable and no web page
take part.
"""

from __future__ import annotations

# First: it must patch before anything imports ssl.
from locust import FastHttpUser, task

# isort: split
import gc
import os
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import gevent
import msgspec
from gevent.event import AsyncResult
from geventhttpclient.client import HTTPClientPool
from locust.contrib.fasthttp import LocustUserAgent
from locust.env import Environment
from locust.exception import StopUser

from scout_protocol.wire import ObservationRequest, encode
from scout_tools.load.job import Answered, Done, Job, Line, Played
from scout_tools.load.mix import Turn
from scout_tools.load.samples import Sample, outcome


class Rollout(FastHttpUser):
    """One rollout: its pauses and requests, then it leaves. `main` sets the attributes of the class."""

    abstract = False
    todo: Iterator[tuple[int, list[Turn]]]
    headers: dict[str, str]
    told: IO[bytes]
    # The time from which on all play. To start thousands takes a while, in which load would pile up.
    begin: AsyncResult[float]
    unready: int
    lead_s: float  # in which all wake up to wait for their first turn

    @task
    def play(self) -> None:
        number, turns = next(self.todo)
        if number == 0:
            # A process's first request takes 40 ms of its own (the resolver's threads and such).
            self.client.get("/health")
        Rollout.unready -= 1
        if not Rollout.unready:
            self.begin.set(time.time() + self.lead_s)
        now_s = self.begin.get()
        for turn in turns:
            due_s = now_s + turn.think_s
            if (early_s := due_s - time.time()) > 0:
                gevent.sleep(early_s)
            body = encode(ObservationRequest([f"t{number}"], [turn.action], [False], [False], [{}]))
            due = {"due_s": due_s}
            self.client.post("/get_observation", data=body.decode(), headers=self.headers, context=due)
            now_s = time.time()
        tell(self.told, Played())
        raise StopUser


def tell(told: IO[bytes], line: Line) -> None:
    """Write one line at once. Ends the process where nobody reads any more: the load must not go on."""
    try:
        told.write(encode(line) + b"\n")
        told.flush()
    except BrokenPipeError:
        os._exit(1)


def main() -> None:
    """Play the job on stdin to its end."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not come between the lines
    n = len(job.rollouts)
    Rollout.told, Rollout.todo = told, enumerate(job.rollouts)
    Rollout.headers = {"Content-Type": "application/json"}
    if job.token:
        Rollout.headers["Authorization"] = f"Bearer {job.token}"
    # Every status is an outcome to write down, none an exception; a redirect would carry the token away.
    LocustUserAgent.valid_response_codes = frozenset(range(1000))
    LocustUserAgent.redirect_response_codes = frozenset()
    # One pool for all, as the agent's own client has it; it looks at no proxy of the environment.
    Rollout.client_pool = HTTPClientPool(
        concurrency=n,
        connection_timeout=job.timeout_s,
        network_timeout=job.timeout_s,
        ssl_context_factory=gevent.ssl.create_default_context,
    )
    # With catch_exceptions Locust would play a rollout that broke again and again.
    environment = Environment(user_classes=[Rollout], host=job.url.rstrip("/"), catch_exceptions=False)
    Rollout.begin, Rollout.unready, Rollout.lead_s = AsyncResult(), n, 0.1 + 1e-4 * n

    def on_request(
        response_time: float,
        exception: Any,
        response: Any,
        start_time: float,
        context: dict[str, float],
        **_: Any,
    ) -> None:
        if "due_s" not in context:
            return  # not part of the load
        if exception is not None:
            cause = getattr(exception, "original", None) or exception  # a timeout comes wrapped
            ended, cache = f"lost:{type(cause).__name__}", ""
        else:
            ended = outcome(response.status_code, response.content or b"")
            cache = response.headers.get("x-cache", "")
        # What the generator itself came too late counts as waiting, else a busy one would look fast.
        late_s = max(0.0, start_time - context["due_s"])
        start_s = start_time - late_s - Rollout.begin.get()
        tell(told, Answered(Sample(start_s, late_s + response_time / 1000, ended, cache)))

    environment.events.request.add_listener(on_request)  # type: ignore[no-untyped-call]
    runner = environment.create_local_runner()
    # A collection over all that is imported takes tens of milliseconds and would be measured as latency.
    gc.collect()
    gc.freeze()
    runner.start(n, spawn_rate=n)
    gevent.sleep(max(0.0, Rollout.begin.get() - time.time()))
    start_s, cpu_start_s = time.perf_counter(), time.process_time()
    assert runner.spawning_greenlet is not None
    runner.spawning_greenlet.join()
    runner.user_greenlets.join()
    tell(told, Done(time.process_time() - cpu_start_s, time.perf_counter() - start_s))
    runner.quit()


if __name__ == "__main__":
    main()
