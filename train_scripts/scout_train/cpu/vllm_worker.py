"""What vLLM's worker process inherits on a CPU (``worker_extension_cls``): verl's, after our patch."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from scout_train.cpu import patches


class CpuWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """verl loads new weights through its own class; made before vLLM loads the model."""

    def __new__(cls, **kwargs: Any) -> Any:
        patches.plain_vllm_linear()
        return super().__new__(cls, **kwargs)
