"""verl's critic worker, which must know the engines of an ``external_lib`` before it chooses one."""

from __future__ import annotations

from typing import Any

from verl.utils.import_utils import import_external_libs
from verl.workers.engine_workers import TrainingWorker


class CriticWorker(TrainingWorker):  # type: ignore[misc]
    """verl 0.9.1 imports ``model.external_lib`` in the actor's worker, and in the critic's never.

    Args:
        config: verl's TrainingWorkerConfig; of it ``model_config.external_lib``, a module or None.
    """

    def __init__(self, config: Any) -> None:
        import_external_libs(config.model_config.external_lib)
        super().__init__(config)
