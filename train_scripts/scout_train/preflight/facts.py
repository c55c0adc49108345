"""What the checks may look at, gathered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_protocol.records import RLRow
from scout_train.compose import Choice
from scout_train.plan.device import Device, device_of
from scout_train.plan.memory import Layout, layout_of
from scout_train.plan.shape import ModelShape, read_shape


@dataclass
class Facts:
    """One run that is about to start. ``rows``: its training questions; ``env``: its environment."""

    config: Any
    choice: Choice
    model: Path
    model_bytes: int
    train: Path
    rows: list[RLRow]
    tools: str
    out: Path
    steps: int
    readiness: Path | None
    env: Mapping[str, str]

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.config)

    @cached_property
    def device(self) -> Device:
        return device_of(self.choice.cluster, str(self.config.trainer.device))

    @cached_property
    def shape(self) -> ModelShape | None:
        """None for an architecture whose parameters we do not count."""
        try:
            return read_shape(self.model)
        except UserError:
            return None

    @property
    def params(self) -> float:
        """Parameters; from the size of the weights, taken as bf16, where the shape is unknown."""
        return float(self.shape.params) if self.shape else self.model_bytes / 2

    @property
    def on_cpu(self) -> bool:
        return str(self.config.trainer.device) == "cpu"

    @property
    def first_batch(self) -> list[RLRow]:
        return self.rows[: int(self.config.data.train_batch_size)]
