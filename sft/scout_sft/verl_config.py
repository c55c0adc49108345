"""The warm-up's settings, and what they mean in verl 0.9.1's SFT configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_sft.dataset import OVERLONG

SCHEDULES = ("constant", "cosine")
STOPS = ("auto", "never", "loss", "format", "both")
KEEPS = ("auto", "last", "best")
DEVICES = ("cpu", "cuda", "npu")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What a user chooses. ``batch`` is over all processes; lengths are in tokens, times in seconds.

    A batch is split into forward passes whose gradients add up. On a CPU a pass is at most ``demos_per_pass``
    demonstrations of similar length, padded; on an accelerator ``max_tokens_per_pass`` tokens, packed.
    ``platform_module`` and ``external_lib`` name the CPU plug-in (empty on an accelerator): they are handed
    to verl by name, so this room imports nothing of the training room.

    ``steps`` 0: at most ``epochs`` passes over the demonstrations, and `stop.rules` end it sooner. ``stop``:
    never, loss, format, both, or auto (`stop.rules`). ``probe_*``: rollouts of every checkpoint through the
    tool server ``server`` on the questions ``probe_rows`` (a file; "" for none), which no demonstration may
    be of. ``lora_rank`` 0 trains all weights; ``lora_alpha`` 0 is twice the rank.
    """

    steps: int = 0
    epochs: float = 3.0
    stop: str = "auto"
    stop_patience: int = 3
    stop_min_delta: float = 0.005
    stop_format: float = 0.95
    stop_em: float = 0.0
    server: str = "http://127.0.0.1:5000"
    tools_token_env: str = ""
    probe_rows: str = ""
    probe_samples: int = 4
    probe_limit: int = 32
    probe_max_turns: int = 4
    probe_max_turn_tokens: int = 256
    probe_max_response_tokens: int = 2048
    lora_rank: int = 0
    lora_alpha: int = 0
    batch: int = 16
    lr: float = 3e-3
    schedule: str = "cosine"
    warmup_steps: int = 30
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    clip_grad: float = 1.0
    seed: int = 0
    dialect: str = "search-r1"
    max_length: int = 2048
    max_obs_tokens: int = 512
    overlong: str = "error"
    val_share: float = 0.02
    save_every: int = 100
    val_every: int = 50
    keep: str = "auto"
    max_tokens_per_pass: int = 16_384
    demos_per_pass: int = 8
    nproc: int = 1
    threads: int = 1
    device: str = "cpu"
    platform_module: str = "scout_train.cpu.platform"
    external_lib: str = "scout_train.cpu.plugin"
    stall_timeout_s: float = 600.0
    overrides: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "lr", "max_length", "max_obs_tokens", "save_every", "val_every"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "must be greater than 0")
        for name in (
            "nproc",
            "threads",
            "stall_timeout_s",
            "max_tokens_per_pass",
            "demos_per_pass",
            "clip_grad",
        ):
            _check(name, getattr(self, name), getattr(self, name) > 0, "must be greater than 0")
        for name in (
            *("stop_patience", "probe_samples", "probe_limit", "probe_max_turns", "probe_max_turn_tokens"),
            "probe_max_response_tokens",
        ):
            _check(name, getattr(self, name), getattr(self, name) > 0, "must be greater than 0")
        for name in ("stop_min_delta", "stop_format", "stop_em"):
            _check(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "must be between 0 and 1")
        _check("stop", self.stop, self.stop in STOPS, f"choose one of {', '.join(STOPS)}")
        _check(
            "stop",
            self.stop,
            self.stop not in ("format", "both") or bool(self.probe_rows),
            "needs --probe-rows and --server, to sample rollouts",
        )
        _check(
            "stop",
            self.stop,
            self.stop not in ("loss", "both") or self.val_share > 0,
            "needs --val-share above 0",
        )
        _check(
            "steps",
            self.steps,
            self.steps > 0 or self.stop == "never" or self.val_share > 0 or bool(self.probe_rows),
            "without --steps something must stop the run: --val-share above 0 or --probe-rows",
        )
        for name in ("steps", "warmup_steps", "weight_decay", "seed", "lora_rank", "lora_alpha"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "must not be negative")
        _check("val_share", self.val_share, 0 <= self.val_share < 1, "must be at least 0 and below 1")
        _check(
            "batch", self.batch, self.batch % self.nproc == 0, f"must be a multiple of --nproc {self.nproc}"
        )
        _check(
            "keep",
            self.keep,
            self.keep != "best"
            or bool(self.probe_rows)
            or (self.val_share > 0 and self.save_every % self.val_every == 0),
            "best needs --probe-rows, or --val-share above 0 and --save-every a multiple of --val-every",
        )
        _check(
            "max_tokens_per_pass",
            self.max_tokens_per_pass,
            self.max_tokens_per_pass >= self.max_length,
            f"must hold at least one demonstration of --max-length {self.max_length}",
        )
        for name, choices in (
            ("schedule", SCHEDULES),
            ("overlong", OVERLONG),
            ("keep", KEEPS),
            ("device", DEVICES),
        ):
            _check(
                name,
                getattr(self, name),
                getattr(self, name) in choices,
                f"choose one of {', '.join(choices)}",
            )
        get_dialect(self.dialect)

    @property
    def lora(self) -> tuple[int, int] | None:
        """Rank and alpha, or None where all weights are trained."""
        return (self.lora_rank, self.lora_alpha or 2 * self.lora_rank) if self.lora_rank else None


def _check(name: str, value: object, ok: bool, remedy: str) -> None:
    if not ok:
        raise UserError(f"--{name.replace('_', '-')}", value, remedy)


def verl_overrides(
    settings: TrainSettings, model: Path, train: Path, val: Path | None, out: Path
) -> dict[str, Any]:
    """Dotted keys and values over verl's ``sft_trainer_engine.yaml``.

    Args:
        model: Hugging Face folder to start from.
        train: parquet of demonstrations; ``val`` likewise, or None.
        out: folder of the run.
    """
    cpu = settings.device == "cpu"
    share = settings.batch // settings.nproc
    per_pass = max(n for n in range(1, min(share, settings.demos_per_pass) + 1) if share % n == 0)
    keys: dict[str, Any] = {
        "data.train_files": [str(train)],
        "data.val_files": [str(val)] if val else None,
        "data.custom_cls.path": "pkg://scout_sft.dataset",
        "data.custom_cls.name": "DemoDataset",
        "data.train_batch_size": settings.batch,
        "data.use_dynamic_bsz": not cpu,
        "data.micro_batch_size_per_gpu": per_pass,
        "data.max_token_len_per_gpu": settings.max_tokens_per_pass,
        "data.max_length": settings.max_length,
        "data.pad_mode": "no_padding",
        # Everything is tokenised when the data set is made: workers would only copy it.
        "data.num_workers": 0,
        "data.scout": {
            "dialect": settings.dialect,
            "max_obs_tokens": settings.max_obs_tokens,
            "overlong": settings.overlong,
            "seed": settings.seed,
            "draws": settings.steps * settings.batch,
            "facts": str(out / "logs" / "facts.json"),
        },
        "model.path": str(model),
        "model.enable_gradient_checkpointing": not cpu,
        "model.use_remove_padding": not cpu,  # packing needs flash attention
        "engine.strategy": "fsdp2",
        "engine.use_torch_compile": not cpu,
        "engine.seed": settings.seed,
        "optim.lr": settings.lr,
        "optim.lr_scheduler_type": settings.schedule,
        "optim.lr_warmup_steps": settings.warmup_steps,
        "optim.min_lr_ratio": settings.min_lr_ratio,
        "optim.weight_decay": settings.weight_decay,
        "optim.betas": list(settings.betas),
        "optim.clip_grad": settings.clip_grad,
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "checkpoint.load_contents": ["model", "optimizer", "extra"],
        "trainer.device": settings.device,
        "trainer.n_gpus_per_node": settings.nproc,
        "trainer.project_name": "scout",
        "trainer.experiment_name": "sft",
        "trainer.seed": settings.seed,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": settings.steps,
        "trainer.save_freq": settings.save_every,
        "trainer.test_freq": settings.val_every if val else -1,
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.resume_mode": "auto",
        "trainer.logger": ["file", "tensorboard"],
    }
    if settings.lora:
        keys["model.lora_rank"], keys["model.lora_alpha"] = settings.lora
        keys["model.target_modules"] = "all-linear"
    if cpu:
        keys["model.external_lib"] = settings.external_lib
        # Without this verl 0.9.1 takes one logsumexp per token in a Python loop where flash attention is
        # not installed: a quarter of the step at this size.
        keys["model.use_fused_kernels"] = True
        keys["model.fused_kernel_options.impl_backend"] = "torch"
        keys["model.override_config"] = {"attn_implementation": "sdpa"}
        # verl's default is bf16 autocast, and engine.dtype does not change that: this does.
        keys["engine.mixed_precision"] = {
            "param_dtype": "fp32",
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        }
    return keys
