"""Who reads a key: the place in the engine's source, so that no line of a recipe is without effect.

A key that an engine's configuration accepts may still be read by nobody; upstream has several. The search is
by text, since importing verl takes seconds: a file reads ``a.b.leaf`` if it holds ``.leaf``, ``"leaf"`` or
``leaf=`` and the word ``b``. Files that only declare the configuration do not count, nor do trainers that
no overlay chooses. What that search would wrongly call read is named in `UNREAD`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# Accepted by verl 0.9.1 and read by nothing that runs here. Each was looked up in its source.
UNREAD = {
    "verl": {
        "actor_rollout_ref.rollout.do_sample": "set rollout.temperature",
        "actor_rollout_ref.actor.fsdp_config.dtype": "set fsdp_config.mixed_precision.param_dtype",
        "actor_rollout_ref.ref.fsdp_config.dtype": "set fsdp_config.mixed_precision.param_dtype",
        "data.gen_batch_size": "the V1 trainer draws one prompt at a time where groups are filtered",
        "actor_rollout_ref.actor.grad_clip": "set actor_rollout_ref.actor.optim.clip_grad",
        "critic.grad_clip": "set critic.optim.clip_grad",
        # v1/trainer_base.py, `_init_critic`: the engine's limit for updates is the one for inference
        "critic.ppo_max_token_len_per_gpu": "set critic.ppo_infer_max_token_len_per_gpu: used for both",
        "actor_rollout_ref.actor.ppo_micro_batch_size": "set ppo_micro_batch_size_per_gpu",
    }
}
# Sections that verl hands on whole: one name is looked for in place of every key below it.
WHOLE = {
    "ray_kwargs.ray_init": "ray_init",
    "actor_rollout_ref.model.override_config": "override_config",
    "critic.model.override_config": "override_config",
    "trainer.v1.sampler.sampler_kwargs": "sampler_kwargs",
}
_OURS = ("scout_train", "scout_agent", "scout_reward")
ROOTS = {"verl": ("verl", "transfer_queue", *_OURS), "verl_tool": _OURS}
# What only declares, checks or plans by a key.
_DECLARES = re.compile(
    r"/trainer/config/|/workers/config/(?!optimizer)|/scout_(?:train|reward)/(?:settings|readers|checks|compose)\.py$"
    r"|/scout_train/(?:preflight|plan)/"
)
# Trainers and engines of verl that no overlay chooses: that they read a key helps nobody.
_ELSEWHERE = re.compile(
    r"/verl/(?:experimental/(?!agent_loop|reward_loop)|workers/engine/(?!fsdp|base|utils|__init__)|models/"
    r"|tools/|utils/(?:megatron|reward_score)|trainer/(?:sft|main_eval|main_generation)|trainer/ppo/ray_trainer)"
)


_FIRST = ("/trainer/ppo/v1/", "/trainer/", "/workers/", "/experimental/agent_loop/")


def _nearness(path: Path) -> tuple[int, str]:
    """Files that every run goes through come first: a reader there says most."""
    name = path.as_posix()
    return next((i for i, part in enumerate(_FIRST) if part in name), len(_FIRST)), name


class Sources:
    """The Python files of an engine and of what runs in it, read once."""

    def __init__(self, roots: Iterable[Path], elsewhere: re.Pattern[str] | None = _ELSEWHERE) -> None:
        self.files: list[tuple[Path, str]] = []
        for root in roots:
            for path in sorted(root.rglob("*.py"), key=_nearness):
                name = path.as_posix()
                if not _DECLARES.search(name) and not (elsewhere and elsewhere.search(name)):
                    self.files.append((path, path.read_text(encoding="utf-8", errors="replace")))

    @classmethod
    def of(cls, engine: str) -> Sources | None:
        """The sources of an engine and of what runs in it; None where they are not installed."""
        found = []
        if engine == "verl_tool":
            from scout_train.verl_tool.paths import checkout

            found = [checkout() / "verl_tool", checkout() / "verl" / "verl"]
        for name in ROOTS.get(engine, ()):
            spec = importlib.util.find_spec(name)
            if spec is None or not spec.submodule_search_locations:
                return None
            found.append(Path(next(iter(spec.submodule_search_locations))))
        return cls(found, _ELSEWHERE if engine == "verl" else None) if found else None

    def reader(self, key: str) -> str | None:
        """``package/file.py:line`` of a place that reads the key, or None."""
        for prefix, name in WHOLE.items():
            if key == prefix or key.startswith(prefix + "."):
                return self._find(name, "")
        parts = key.split(".")
        return self._find(parts[-1], parts[-2] if len(parts) > 1 else "")

    def _find(self, leaf: str, section: str) -> str | None:
        read = re.compile(rf"\.{re.escape(leaf)}\b|[\"']{re.escape(leaf)}[\"']|\b{re.escape(leaf)}=")
        for path, text in self.files:
            if leaf in text and _names(section, text) and (found := read.search(text)):
                line = text.count("\n", 0, found.start()) + 1
                return f"{path.parent.name}/{path.name}:{line}"
        return None


def _names(section: str, text: str) -> bool:
    """Whether a file speaks of the section at all; ``fsdp_config`` is ``engine_config`` in verl's engines."""
    words = {"fsdp_config": ("engine_config", "fsdp_config"), "data": ("data",)}.get(section, (section,))
    return any(word in text for word in words)


def unread(engine: str, key: str) -> str | None:
    """What to do about a key that the engine accepts and never reads; None for all others."""
    return UNREAD.get(engine, {}).get(key)


def without_reader(engine: str, keys: Sequence[str]) -> list[str]:
    """Those of ``keys`` that nothing in the engine reads; empty where its sources are not here."""
    sources = Sources.of(engine)
    if sources is None:
        return []
    return [key for key in keys if unread(engine, key) or sources.reader(key) is None]
