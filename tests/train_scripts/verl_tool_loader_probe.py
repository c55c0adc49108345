"""Runs in .venv-verl-tool: the group loader on verl's own batches, without Ray; prints one JSON line."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
import verl  # noqa: F401  (loads the engine's plug-ins)
from omegaconf import OmegaConf
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.dataset.rl_dataset import collate_fn

from scout_protocol.records import Author, Span, StopReason, Trace
from scout_reward.score import Score
from scout_train.errors import UnfilledStepError
from scout_train.settings import SamplerSection
from scout_train.traces import TraceLog
from scout_train.verl_tool.agent_loop import GROUP, LOST, MEMBER, STEP, TRACE
from scout_train.verl_tool.group_loader import AGE, GroupLoader
from scout_train.verl_tool.rollouts import Rollouts
from scout_train.verl_tool.trainer import ScoutVerlToolTrainer

N, BATCH, WIDTH = 3, 2, 4


class Questions(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids = torch.tensor([0, 0, 5, i])
        ones = torch.tensor([0, 0, 1, 1])
        return {
            "input_ids": ids,
            "attention_mask": ones,
            "position_ids": torch.tensor([0, 0, 0, 1]),
            "raw_prompt_ids": [5, i],
            "index": i,
            "data_source": "toy",
        }


class Manager:
    """Plays a row by a coin of question, member and step; two workers, so that batches are padded."""

    agent_loop_workers = (1, 2)

    def __init__(self, p_lost: float = 0.0, validation_outages: int = 0) -> None:
        self.p_lost, self.outages, self.sizes = p_lost, validation_outages, []

    def generate_sequences(self, batch: DataProto) -> DataProto:
        assert len(batch) % 2 == 0
        self.sizes.append(len(batch))
        rows, fields = [], batch.non_tensor_batch
        for i in range(len(batch)):
            key = f"{fields['index'][i]} {fields[MEMBER][i]} {fields[STEP][i]}"
            coin = random.Random(key)
            right, lost = coin.random() < 0.5, coin.random() < self.p_lost
            if batch.meta_info.get("validate") and self.outages:
                self.outages, lost = self.outages - 1, True
            rows.append((right, lost, 1 + coin.randrange(3), i))
        masks = torch.tensor([[int(c < n) for c in range(WIDTH)] for _, _, n, _ in rows])
        prompts = torch.tensor([[0, 0, 5, int(fields["index"][i])] for *_, i in rows])
        attention = torch.cat([torch.tensor([[0, 0, 1, 1]] * len(rows)), masks], 1)
        scores = torch.zeros(len(rows), WIDTH)
        for j, (right, _, n, _) in enumerate(rows):
            scores[j, n - 1] = float(right)
        data = {
            "prompts": prompts,
            "responses": masks * 7,
            "response_mask": masks,
            "rollout_log_probs": -0.5 * masks,
            "rm_scores": scores,
            "input_ids": torch.cat([prompts, masks * 7], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        }
        traces = [
            Trace(
                *("t", str(fields["index"][i]), "toy", "q", ["a"]),
                [Span(Author.POLICY, "x", [7] * n, [-0.5] * n)],
                *([], StopReason.INFRA_ERROR if lost else StopReason.ANSWER, 1, 0, n, 0),
                {} if lost else Score(float(right), float(right), float(right), 1.0, 1, "a", "").as_dict(),
                *("m", "s", int(fields[STEP][i]), "", "search-r1", 0.0),
                {"group": str(fields[GROUP][i]), "member": int(fields[MEMBER][i])},
            )
            for right, lost, n, i in rows
        ]
        extra = {
            "acc": np.array([float(right) for right, *_ in rows]),
            TRACE: np.array([msgspec.json.encode(t) for t in traces], dtype=object),
            LOST: np.array(["http_503" if lost else "" for _, lost, *_ in rows], dtype=object),
        }
        meta = {"reward_extra_keys": ["acc"], "timing": {"x": float(len(self.sizes))}}
        return DataProto(TensorDict(data, batch_size=len(rows)), extra, meta)


def make(folder: Path, manager: Manager, share: float = 1.0) -> Any:
    config = OmegaConf.create(
        {
            "data": {"train_batch_size": BATCH, "seed": 0},
            "actor_rollout_ref": {"rollout": {"n": N}, "actor": {"loss_agg_mode": "token-mean"}},
            "algorithm": {"filter_groups": {"enable": True, "metric": "acc", "max_num_gen_batches": 9}},
        }
    )
    sampler = SamplerSection(poll_interval_s=0.0, max_infra_error_share=share, carry_max_steps=1)
    log = TraceLog(folder / "traces.jsonl")
    trainer = SimpleNamespace(config=config, settings=SimpleNamespace(sampler=sampler), global_steps=1)
    trainer.async_rollout_mode = True
    trainer.async_rollout_manager = Rollouts(manager, log)
    trainer._get_gen_batch = MethodType(RayPPOTrainer._get_gen_batch, trainer)
    rng = torch.Generator().manual_seed(0)
    order = torch.utils.data.RandomSampler(Questions(), generator=rng)
    loader = StatefulDataLoader(
        Questions(), batch_size=BATCH, sampler=order, collate_fn=collate_fn, drop_last=True
    )
    trainer.train_dataloader = GroupLoader(trainer, loader)
    return trainer


def steps(trainer: Any, count: int) -> list[dict[str, Any]]:
    """What verl's ``fit`` does with the loader and the manager."""
    found, loader = [], trainer.train_dataloader
    for batch_dict in loader:
        batch = DataProto.from_single_dict(batch_dict)
        gen = trainer._get_gen_batch(batch).repeat(N, interleave=True)
        out = trainer.async_rollout_manager.generate_sequences(gen)
        out.meta_info.pop("timing")
        asked = (
            [int(x) for x in np.repeat(batch.non_tensor_batch["index"], N)]
            if "index" in (batch.non_tensor_batch)
            else [int(x) for x in gen.non_tensor_batch["index"]]
        )
        batch = batch.repeat(N, interleave=True).union(out)
        c = loader.source.counts
        found.append(
            {
                "asked": asked,
                "played": batch.batch["prompts"][:, -1].tolist(),
                "width": batch.batch["responses"].shape[1],
                "prompt_width": batch.batch["prompts"].shape[1],
                "right": batch.batch["rm_scores"].sum(-1).tolist(),
                "ages": batch.non_tensor_batch[AGE].tolist(),
                "lost": sum(bool(g.lost) for g in loader.trained),
                "counts": c.metrics(loader.source.options),
            }
        )
        trainer.global_steps += 1
        if len(found) == count:
            return found
    raise AssertionError("the loader ended")


def main() -> None:
    folder = Path(sys.argv[1])
    unbroken = steps(make(folder, Manager(p_lost=0.04)), 16)

    first = make(folder, Manager(p_lost=0.04))
    resumed = steps(first, 7)
    loader = first.train_dataloader
    torch.save(loader.state() | {"data": loader.state_dict()}, folder / "state.pt")
    second = make(folder, Manager(p_lost=0.04))
    second.global_steps = 8
    state = torch.load(folder / "state.pt", weights_only=False)
    second.train_dataloader.load_state_dict(state["data"])
    second.train_dataloader.restore(state)
    resumed += steps(second, 9)

    def validate(outages: int) -> list[int] | str:
        rollouts = make(folder, Manager(validation_outages=outages)).async_rollout_manager
        rows = collate_fn([Questions()[i] for i in (3, 1, 4)])
        batch = DataProto.from_single_dict(rows)
        batch.meta_info = {"validate": True, "global_steps": 1}
        try:
            return [int(x) for x in rollouts.generate_sequences(batch).batch["prompts"][:, -1]]
        except UnfilledStepError as error:
            return str(error)

    fake = SimpleNamespace(config=OmegaConf.create({"algorithm": {}}))
    batch = DataProto(
        TensorDict(
            {"old_log_probs": torch.full((2, 2), -1.0), "rollout_log_probs": torch.full((2, 2), -2.0)},
            batch_size=2,
        ),
        {AGE: np.array([0, 1])},
    )
    RayPPOTrainer.compute_rollout_importance_weights_and_add_to_batch(fake, batch)
    old = type("T", (ScoutVerlToolTrainer,), {"__init__": lambda self: None})()
    old.config = fake.config
    kept, _ = old.compute_rollout_importance_weights_and_add_to_batch(batch)
    found = {
        "unbroken": unbroken,
        "resumed": resumed,
        "validation": [validate(0), validate(2), validate(1000)],
        "old_log_probs": kept.batch["old_log_probs"][:, 0].tolist(),
    }
    print("PROBE" + json.dumps(found), flush=True)


main()
