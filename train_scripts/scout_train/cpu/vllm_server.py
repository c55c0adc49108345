"""``rollout.name=vllm`` on a CPU: verl's own vLLM replica, for vLLM's CPU build.

The server is that of an accelerator: an actor with vLLM's asynchronous engine, asked through verl's load
balancer. Two of verl's hooks for subclasses differ: the address and what extends vLLM's worker.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class CpuVllmServer(vLLMHttpServer):  # type: ignore[misc]
    """Listens on loopback: all processes of a CPU run are on one machine."""

    def _post_init(self, cuda_visible_devices: str) -> None:
        super()._post_init(cuda_visible_devices)
        self._server_address = "127.0.0.1"

    def _get_worker_extension_cls(self) -> str:
        return "scout_train.cpu.vllm_worker.CpuWorkerExtension"


class CpuVllmReplica(vLLMReplica):  # type: ignore[misc]
    """One server beside the training worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
