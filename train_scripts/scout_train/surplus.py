"""Surplus groups in a checkpoint: verl's synchronous trainer saves nothing of TransferQueue.

A run that is killed and goes on must train the same groups as one that was not.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transfer_queue as tq

FILE = "surplus.pt"
PARTITION = "train"


def save(folder: Path, uids: set[str], last_step: int) -> int:
    """Write the groups of steps up to ``last_step`` into a checkpoint's folder. Returns how many."""
    tags = (tq.kv_list(PARTITION) or {}).get(PARTITION, {}) if uids else {}
    prompts = {u: tags[u] for u in uids if u in tags and tags[u]["global_steps"] <= last_step}
    keys = [k for k, tag in tags.items() if not tag.get("is_prompt") and k.split("_")[0] in prompts]
    if not keys:
        return 0
    fields = tq.kv_batch_get(keys=keys, partition_id=PARTITION)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{FILE}.tmp"
    torch.save(
        {"prompts": prompts, "keys": keys, "tags": [tags[k] for k in keys], "fields": fields}, temporary
    )
    temporary.replace(folder / FILE)
    return len(prompts)


def load(folder: Path) -> set[str]:
    """Put the groups of a checkpoint back into TransferQueue. Returns their uids."""
    path = folder / FILE
    if not path.is_file():
        return set()
    saved = torch.load(path, weights_only=False)  # our own file, written by `save`
    prompts = saved["prompts"]
    tq.kv_batch_put(keys=list(prompts), partition_id=PARTITION, tags=list(prompts.values()))
    tq.kv_batch_put(keys=saved["keys"], partition_id=PARTITION, fields=saved["fields"], tags=saved["tags"])
    return set(prompts)
