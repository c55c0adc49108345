"""Two GRPO steps with vLLM's CPU build as the rollout, and our tool server: `make test-vllm`.

The same trainer, agent loop and sampler as with transformers, but the rollout is a server that is asked
through verl's load balancer and gets new weights over verl's wire, as on an accelerator.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec
import psutil
import pytest

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.records import Author, Span, StopReason, Trace
from scout_protocol.turn import Action, parse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: make test-vllm", allow_module_level=True)

N_QUESTIONS, N_MEMBERS = 4, 4
SETTINGS = [
    f"data.train_batch_size={N_QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={N_QUESTIONS}",
    f"actor_rollout_ref.rollout.n={N_MEMBERS}",
    "actor_rollout_ref.actor.optim.lr=5e-4",  # so that old weights would be noticed
    "scout.episode.turn_timeout_s=300",  # a busy machine is not what is tested
    "scout.episode.trajectory_timeout_s=600",
]


@dataclass
class Run:
    """What the run left behind. ``start`` is the model folder it began with."""

    out: Path
    start: Path
    metrics: list[dict[str, Any]]
    traces: list[Trace]
    left_over: set[int]

    def of_step(self, step: int) -> list[Trace]:
        return [t for t in self.traces if t.step == step]


def own(trace: Trace) -> list[Span]:
    return [s for s in trace.spans if s.author is Author.POLICY]


def ids(span: Span) -> list[int]:
    assert span.token_ids is not None
    return span.token_ids


def n_sampled(trace: Trace) -> int:
    return sum(len(ids(span)) for span in own(trace))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, rows_file: Path) -> Iterator[str]:
    """The URL of `scout serve` over one document a capital."""
    from scout_data.rows import read_rows

    folder = tmp_path_factory.mktemp("tools")
    facts = {row.question: row.golden_answers[0] for row in read_rows(rows_file)}
    titles = {question: question.removeprefix("What is the capital of ").rstrip("?") for question in facts}
    documents = [
        {"id": title, "title": title, "text": f"The capital of {title} is {facts[question]}."}
        for question, title in titles.items()
    ]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(d) + "\n" for d in documents))
    scout = [sys.executable, "-m", "scout_cli.main"]
    build = [*scout, "index", "build", str(corpus), "--index", str(folder / "index")]
    subprocess.run(build, check=True, timeout=120, env=environment())
    serve = [*scout, "serve", "--index", str(folder / "index"), "--topk", "1", "--workers", "1"]
    serve += ["--port", "0", "--exit-with", str(os.getpid())]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=environment())
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "ready at " in line
    yield line.split("ready at ")[1].split()[0]
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=30)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, teach: Any) -> Path:
    """A Qwen3 with heads of 32 channels: vLLM's CPU attention has no smaller ones. Embeddings are tied."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "tie_word_embeddings": True}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return teach(
        tmp_path_factory.mktemp("qwen3"),
        lambda **sizes: Qwen3ForCausalLM(Qwen3Config(**shape, **heads, **sizes)),
    )


@pytest.fixture(scope="module")
def run(model: Path, rows_file: Path, tools: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`scout train --algo grpo --with vllm_cpu recompute`, two steps, a checkpoint after each."""
    out = tmp_path_factory.mktemp("vllm") / "run"
    options = ["--algo", "grpo", "--cluster", "cpu", "--with", "vllm_cpu", "recompute", "--model", model]
    options += ["--train", rows_file, "--tools", tools, "--out", out, "--steps", "2", "--save-every", "1"]
    options += [
        "--time-limit-s",
        "800",
        "--stall-timeout-s",
        "600",
        *(x for s in SETTINGS for x in ("--set", s)),
    ]
    argv = [sys.executable, "-m", "scout_train.launch", *map(str, options)]
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    left_over = {p.pid for p in psutil.Process().children(recursive=True)} - before
    traces = [
        msgspec.json.decode(line, type=Trace) for line in (out / "traces.jsonl").read_bytes().splitlines()
    ]
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Run(out, model, metrics, traces, left_over)


def test_both_steps_are_complete_and_nothing_is_left(run: Run) -> None:
    assert [m["step"] for m in run.metrics] == [1, 2]
    for line in run.metrics:
        assert line["scout/trained_trajectories"] == line["scout/trajectories"] == N_QUESTIONS * N_MEMBERS
        assert line["scout/infra_errors"] == 0
        assert len(run.of_step(line["step"])) == N_QUESTIONS * N_MEMBERS
    assert any(m["actor/grad_norm"] > 0 for m in run.metrics)  # chance may leave a step without contrast
    assert not run.left_over
    said = (run.out / "console.log").read_text()
    assert "vLLM" in said or "vllm" in said


def test_the_tool_server_answered(run: Run) -> None:
    calls = [c for t in run.traces for c in t.tool_calls if c.valid]
    assert calls and any(t.n_searches and t.score["em"] for t in run.traces)
    found = 0
    for trace in run.traces:
        for turn, answer in zip(trace.spans, trace.spans[1:], strict=False):
            if answer.author is Author.TOOL and parse(turn.text, SEARCH_R1).action is Action.SEARCH:
                assert "</search>" in turn.text
                assert "The capital of" in answer.text or "No results found." in answer.text
                found += 1
    assert found == len(calls)


def test_turns_end_where_the_episode_expects(run: Run) -> None:
    """A stop string is kept, with the token that completes it, and nothing comes after."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.start)
    ended = 0
    for trace in run.traces:
        for span in own(trace):
            without_last = tokenizer.decode(ids(span)[:-1])
            assert not any(stop in without_last for stop in SEARCH_R1.stops), span.text
            ended += any(stop in span.text for stop in SEARCH_R1.stops)
            assert tokenizer.decode(ids(span)) == span.text
        if trace.stop_reason is StopReason.ANSWER:
            assert "</answer>" in own(trace)[-1].text
    assert ended > len(run.traces) / 2
    assert all(m["scout/tokens_after_stop"] == 0 for m in run.metrics)


def test_what_was_sampled_is_what_was_trained(run: Run) -> None:
    """By our count of both; and verl's masked mean of the advantages is that over sampled tokens alone."""
    telling = []
    for line in run.metrics:
        traces = run.of_step(line["step"])
        assert line["scout/retokenisation_drift"] == 0
        assert line["scout/trained_policy_tokens"] == sum(n_sampled(t) for t in traces)
        groups: dict[str, list[float]] = defaultdict(list)
        for trace in traces:
            groups[trace.extra["group"]].append(trace.score["total"])

        def advantage(trace: Trace, groups: dict[str, list[float]] = groups) -> float:
            rewards = groups[trace.extra["group"]]
            return (trace.score["total"] - mean(rewards)) / (stdev(rewards) + 1e-6)

        def weighted(length: Any, traces: list[Trace] = traces, advantage: Any = advantage) -> float:
            return sum(advantage(t) * length(t) for t in traces) / sum(length(t) for t in traces)

        with_observations = weighted(lambda t: sum(len(ids(s)) for s in t.spans[1:]))
        telling.append(abs(with_observations - weighted(n_sampled)))
        assert line["critic/advantages/mean"] == pytest.approx(weighted(n_sampled), abs=1e-5)
    assert max(telling) > 1e-3  # so the lines above say something


def largest_gap(model_dir: Path, traces: list[Trace]) -> float:
    """Between the log-probabilities that vLLM sampled with and those of a model by plain transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    gap = 0.0
    for trace in traces:
        sequence = [i for span in trace.spans for i in ids(span)]
        with torch.no_grad():
            logprobs_TV = model(torch.tensor([sequence])).logits[0].log_softmax(-1)
        at = 0
        for span in trace.spans:
            if span.author is Author.POLICY:
                assert span.logprobs is not None
                for i, (token, sampled) in enumerate(zip(ids(span), span.logprobs, strict=True), start=at):
                    gap = max(gap, abs(float(logprobs_TV[i - 1, token]) - sampled))
            at += len(ids(span))
    return gap


def test_every_step_samples_from_the_newest_weights(run: Run) -> None:
    """vLLM starts with random weights: agreement in step 1 is a first load, in step 2 a second."""
    newest = [run.start, run.out / "ckpt" / "global_step_1" / "actor" / "huggingface"]
    gaps = [largest_gap(folder, run.of_step(step)) for step, folder in enumerate(newest, start=1)]
    stale = largest_gap(run.start, run.of_step(2))
    print(
        f"largest log-probability gap: newest weights {gaps[0]:.1e} {gaps[1]:.1e}, one step old {stale:.1e}"
    )
    assert max(gaps) < 1e-4 and stale > 10 * max(gaps)
    for line in run.metrics:  # verl's own comparison, with the training engine's second pass
        assert line["training/rollout_probs_diff_max"] < 1e-4
