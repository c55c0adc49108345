"""The transformers rollout: concurrent requests make one batch, weights are copied whole or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest


class Worker:
    """Stands for the Ray actor: runs what it is sent at once, and counts."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.__ray_call__ = self

    async def remote(self, function: Any, requests: Any) -> Any:
        self.batches.append(len(requests))
        return function(None, requests)


class Served:
    """What verl builds in the training worker, as far as generation needs it."""

    def __init__(self, model_dir: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from scout_agent.generation import Engine

        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
        self.engine = Engine(model, self.tokenizer, [self.tokenizer.eos_token_id], 16, 512, 0)
        self.weights_step = 7


@pytest.fixture
def served(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    from scout_train.cpu import rollout

    server = Served(model_dir)
    monkeypatch.setattr(rollout._Served, "rollout", server)
    return server


def test_concurrent_requests_are_one_batch_with_their_own_parameters(served: Served) -> None:
    from scout_train.cpu.rollout import InProcessHandle

    worker = Worker()
    handle = InProcessHandle(worker, max_rows=64, gather_s=0.001)
    prompts = [served.tokenizer.encode(t) for t in ("a", "capital of France", "<think>")]

    async def go() -> list[Any]:
        asked = [
            handle.generate.remote(
                prompt_ids=p, sampling_params={"temperature": 0, "max_tokens": n, "logprobs": True}
            )
            for p, n in zip(prompts, (1, 4, 9), strict=True)
        ]
        return await asyncio.gather(*asked)

    outputs = asyncio.run(go())
    assert worker.batches == [3]
    assert [len(o.token_ids) for o in outputs] == [1, 4, 9]
    assert all(len(o.log_probs) == len(o.token_ids) and max(o.log_probs) <= 0 for o in outputs)
    assert {o.extra_fields["global_steps"] for o in outputs} == {7}


def test_a_batch_holds_no_more_rows_than_allowed(served: Served) -> None:
    from scout_train.cpu.rollout import InProcessHandle

    worker = Worker()
    handle = InProcessHandle(worker, max_rows=4, gather_s=0.001)

    async def go() -> None:
        params = {"temperature": 0, "max_tokens": 1}
        await asyncio.gather(
            *(handle.generate.remote(prompt_ids=[5], sampling_params=params) for _ in range(10))
        )

    asyncio.run(go())
    assert worker.batches == [4, 4, 2]


def test_an_error_reaches_every_request_of_the_batch(served: Served) -> None:
    from scout_protocol.errors import UserError
    from scout_train.cpu.rollout import InProcessHandle

    handle = InProcessHandle(Worker(), max_rows=64, gather_s=0.001)

    async def go() -> list[Any]:
        good, bad = {"max_tokens": 1}, {"beam_width": 3}
        asked = [handle.generate.remote(prompt_ids=[5], sampling_params=p) for p in (good, bad)]
        return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = asyncio.run(go())
    assert all(isinstance(o, UserError) and "beam_width" in str(o) for o in outcomes)


def _rollout(model_dir: Path) -> Any:
    """A rollout around the tiny model, without verl's worker around it."""
    import torch
    from transformers import AutoModelForCausalLM

    from scout_train.cpu.rollout import TransformersRollout

    rollout = object.__new__(TransformersRollout)
    rollout.model = AutoModelForCausalLM.from_pretrained(model_dir)
    rollout.seed, rollout.engine = 0, type("E", (), {"rng": torch.Generator()})()
    return rollout


def test_weights_are_copied_whole(model_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    trained = AutoModelForCausalLM.from_pretrained(model_dir)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1.0)
    rollout = _rollout(model_dir)
    asyncio.run(rollout.update_weights(iter(trained.state_dict().items()), global_steps=12))
    assert rollout.weights_step == 12
    for name, tensor in rollout.model.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])


def test_a_missing_tensor_is_an_error(model_dir: Path) -> None:
    rollout = _rollout(model_dir)
    some = list(rollout.model.state_dict().items())[:-2]
    with pytest.raises(RuntimeError, match="not synchronised"):
        asyncio.run(rollout.update_weights(iter(some), global_steps=1))


def test_an_unknown_wire_format_is_an_error(model_dir: Path) -> None:
    with pytest.raises(ValueError, match="delta_flush"):
        asyncio.run(_rollout(model_dir).update_weights(iter([]), wire_format="delta_flush"))


def test_the_draws_of_a_step_do_not_depend_on_how_the_run_got_there(model_dir: Path) -> None:
    def draws(*steps: int) -> int:
        rollout = _rollout(model_dir)
        for step in steps:
            asyncio.run(rollout.update_weights(iter(rollout.model.state_dict().items()), global_steps=step))
        return int(rollout.engine.rng.initial_seed())

    assert draws(1, 2, 3) == draws(3) != draws(2)


def test_who_waits_for_a_batch_is_told_when_the_model_gets_one(served: Served) -> None:
    from scout_train.cpu.rollout import InProcessHandle

    seen: list[bool] = []

    class Watching(Worker):
        async def remote(self, function: Any, requests: Any) -> Any:
            seen.append(handle.generate.working)
            return await super().remote(function, requests)

    handle = InProcessHandle(Watching(), max_rows=2, gather_s=0.001)
    told: list[bool] = []
    handle.generate.on_batch = lambda: told.append(handle.generate.working)
    prompt = served.tokenizer.encode("a")

    async def go() -> None:
        params = {"temperature": 0, "max_tokens": 1}
        await asyncio.gather(*(handle.generate.remote(prompt, params) for _ in range(5)))

    assert not handle.generate.working
    asyncio.run(go())
    assert told == seen == [True, True, True] and not handle.generate.working


def test_log_probabilities_in_chunks_are_verls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of verl's own loop over rows, for more rows than a chunk has."""
    import torch
    from verl.utils import torch_functional

    from scout_train.cpu import patches

    theirs = torch_functional.logprobs_from_logits_v2
    # the plug-in may have been loaded by another test: what it replaced is then in its closure
    while theirs.__closure__:
        theirs = theirs.__closure__[0].cell_contents
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", theirs)
    monkeypatch.setattr(patches, "_CHUNK_ROWS", 7)
    patches.logprobs_in_chunks()
    ours = torch_functional.logprobs_from_logits_v2
    assert ours is not theirs
    torch.manual_seed(0)
    for shape in ((20, 33), (7, 5), (1, 3), (3, 4, 11)):
        labels = torch.randint(0, shape[-1], shape[:-1])
        weight = torch.randn(shape[:-1])
        found, grads = [], []
        for function in (theirs, ours):
            logits = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 5).requires_grad_()
            out = function(logits, labels)
            (out * weight).sum().backward()
            found.append(out.detach())
            grads.append(logits.grad)
        torch.testing.assert_close(found[0], found[1])
        torch.testing.assert_close(grads[0], grads[1])


def test_the_patches_refuse_another_version_of_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    from scout_protocol.errors import UserError
    from scout_train.cpu import patches

    monkeypatch.setattr(patches, "version", lambda _name: "0.10.0")
    for patch in (patches.gloo_backend, patches.unpinned_offload, lambda: patches.rollout_class("x", "y.Z")):
        with pytest.raises(UserError, match=r"verl: 0\.10\.0: .*verl==0\.9\.1"):
            patch()
