"""What verl-tool's agent-loop manager plays, as groups with their traces."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from verl.protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto

from scout_protocol.records import Trace
from scout_train.errors import UnfilledStepError
from scout_train.traces import TraceLog
from scout_train.verl_tool.agent_loop import GROUP, LOST, MEMBER, STEP, TRACE

_VALIDATION_ROUNDS = 3


@dataclass
class Group:
    """A question with its trajectories; see `scout_train.verl_tool.groups.Played`."""

    question: DataProto  # one row, as the loader drew it
    rollouts: DataProto  # ``n`` rows
    traces: list[Trace]
    outcomes: list[float]
    lost: list[str]
    step: int


class Rollouts:
    """In the place of verl-tool's agent-loop manager: plays batches and hands over those that were played.

    Args:
        manager: the real one.
        log: where traces go; this process is their only writer.
    """

    def __init__(self, manager: Any, log: TraceLog) -> None:
        self.manager, self.log = manager, log
        self.ready: DataProto | None = None

    def generate_sequences(self, batch: DataProto) -> DataProto:
        """What the trainer's loop calls: the step's groups, or a validation that is played now."""
        if batch.meta_info.get("validate"):
            return self._validation(batch)
        if self.ready is None:
            raise RuntimeError("no groups were played for this step")
        out, self.ready = self.ready, None
        return out

    def play(self, batch: DataProto, step: int, train: bool) -> tuple[DataProto, list[Trace], list[str]]:
        """Play every row. Returns the rows with tokens, their traces, and why a row is lost ("" if not)."""
        workers = len(self.manager.agent_loop_workers)
        batch.non_tensor_batch[STEP] = np.array([step] * len(batch), dtype=object)
        padded, n_padding = pad_dataproto_to_divisor(batch, workers)
        out = unpad_dataproto(self.manager.generate_sequences(padded), n_padding)
        out.meta_info = {"reward_extra_keys": out.meta_info["reward_extra_keys"]}
        fields = out.non_tensor_batch
        traces = [msgspec.json.decode(raw, type=Trace) for raw in fields.pop(TRACE)]
        lost = [str(why) for why in fields.pop(LOST)]
        for trace in traces:
            self.log.write(trace, train)
        return out, traces, lost

    def _validation(self, batch: DataProto) -> DataProto:
        """All rows whole: one that an outage ended is no wrong answer, it is played again."""
        step = int(batch.meta_info["global_steps"])
        name_members(batch, 1)
        out, _, lost = self.play(batch, step, train=False)
        for _ in range(_VALIDATION_ROUNDS):
            again = [i for i, why in enumerate(lost) if why]
            if not again:
                break
            fresh, _, why = self.play(batch[np.array(again)], step, train=False)
            for place, reason in zip(again, why, strict=True):
                lost[place] = reason
            order = np.arange(len(batch))
            order[again] = len(batch) + np.arange(len(again))
            out = DataProto.concat([out, fresh])[order]
        if any(lost):
            raise UnfilledStepError(
                f"validation lost {sum(map(bool, lost))} trajectories: is the tool server up?"
            )
        out.meta_info["timing"] = {}
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["manager"], name)


def name_members(batch: DataProto, group_size: int) -> None:
    """Number the rows of a batch: ``group_size`` neighbours are one group."""
    n_groups = len(batch) // group_size
    names = np.repeat([uuid.uuid4().hex for _ in range(n_groups)], group_size)
    batch.non_tensor_batch[GROUP] = names.astype(object)
    batch.non_tensor_batch[MEMBER] = np.array([i % group_size for i in range(len(batch))], dtype=object)
