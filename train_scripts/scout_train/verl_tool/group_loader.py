"""The data loader of verl-tool's trainer, whose questions come with their groups played.

``fit`` asks it for the questions of a step; by then the rollouts stand ready in `Rollouts.ready`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from verl.protocol import DataProto

from scout_train.verl_tool.groups import GroupOptions, GroupSource
from scout_train.verl_tool.rollouts import Group, name_members
from scout_train.verl_tool.trim import trim_padding

if TYPE_CHECKING:
    from scout_train.verl_tool.trainer import ScoutVerlToolTrainer

AGE = "scout_age_steps"


class GroupLoader:
    """In the place of the training data loader: one batch of questions a step, whose groups are played.

    Drawing goes round the data for ever. What was drawn and is not trained yet belongs to a checkpoint.
    """

    def __init__(self, trainer: ScoutVerlToolTrainer, loader: Any) -> None:
        self.trainer, self.loader = trainer, loader
        config, settings = trainer.config, trainer.settings
        groups = config.algorithm.filter_groups
        self.n = int(config.actor_rollout_ref.rollout.n)
        self.metric = str(groups.metric) if groups.enable else None
        self.source = GroupSource(
            GroupOptions(
                train_batch_size=int(config.data.train_batch_size),
                group_size=self.n,
                filter_groups=bool(groups.enable),
                max_num_gen_batches=int(groups.max_num_gen_batches),
                max_infra_error_share=settings.sampler.max_infra_error_share,
                carry_max_steps=settings.sampler.carry_max_steps,
            ),
            self._play,
        )
        self.pending: DataProto | None = None  # drawn, not played
        self.trained: list[Group] = []
        self.took_s = 0.0
        self.passes = 0  # over the data, before this one
        self._seed = int(config.data.seed or 0)
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)  # state_dict, load_state_dict, sampler

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rollouts = self.trainer.async_rollout_manager
        while True:
            start, step = time.perf_counter(), self.trainer.global_steps
            self.trained = self.source.fill(step)
            ages = np.repeat([step - g.step for g in self.trained], self.n)
            ready = DataProto.concat([g.rollouts for g in self.trained])
            ready.non_tensor_batch[AGE] = ages
            mode = self.trainer.config.actor_rollout_ref.actor.loss_agg_mode
            rollouts.ready = trim_padding(ready, keep_response=mode == "seq-mean-token-sum-norm")
            rollouts.ready.meta_info["timing"] = {}
            questions = DataProto.concat([g.question for g in self.trained])
            self.took_s = time.perf_counter() - start
            yield {**dict(questions.batch.items()), **questions.non_tensor_batch}

    def _draw(self, n_questions: int) -> DataProto:
        while self.pending is None or len(self.pending) < n_questions:
            drawn = DataProto.from_single_dict(dict(self._next_batch()))
            self.pending = drawn if self.pending is None else DataProto.concat([self.pending, drawn])
        found = self.pending[:n_questions]
        rest = len(self.pending) - n_questions
        self.pending = self.pending[n_questions:] if rest else None
        return found

    def _next_batch(self) -> Any:
        """The loader's next batch, round and round.

        The order of a pass is that of its number: verl's sampler would begin a resumed run with the order of
        the first pass.
        """
        while True:
            if self._batches is None:
                generator = getattr(self.loader.sampler, "generator", None)
                if generator is not None:
                    generator.manual_seed(self._seed + self.passes)
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches, self.passes = None, self.passes + 1

    def state(self) -> dict[str, Any]:
        """What verl's own state of the loader leaves out; everything in it is older than the next step."""
        return {"surplus": self.source.surplus, "pending": self.pending, "passes": self.passes}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.source.surplus, self.pending = state["surplus"], state["pending"]
        self.passes = state["passes"]

    def _play(self, n_groups: int, step: int) -> list[Group]:
        questions = self._draw(n_groups)
        batch = self.trainer._get_gen_batch(copy.deepcopy(questions)).repeat(self.n, interleave=True)
        batch.meta_info["global_steps"] = step
        name_members(batch, self.n)
        out, traces, lost = self.trainer.async_rollout_manager.play(batch, step, train=True)
        values = out.non_tensor_batch.get(self.metric) if self.metric else np.zeros(len(out))
        if values is None:
            raise KeyError(f"algorithm.filter_groups.metric: {self.metric} is no part of the reward")
        found = []
        for i in range(n_groups):
            rows = np.arange(i * self.n, (i + 1) * self.n)
            found.append(
                Group(
                    questions[np.array([i])],
                    out[rows],
                    [traces[j] for j in rows],
                    [float(values[j]) for j in rows],
                    [lost[j] for j in rows if lost[j]],
                    step,
                )
            )
        return found
