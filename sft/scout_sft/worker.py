"""The training process: verl's SFT trainer with our configuration.

    python -m scout_sft.worker JOB.json                  one process; the caller sets torchrun's variables
    python -m scout_sft.worker JOB.json --torchrun N     torchrun, and N processes of the first kind under it

JOB.json holds ``{"keys": {dotted key: value}, "overrides": ["key=value", …], "seed", "error": path,
"parent": pid}``.
A wrong input found here (a demonstration that is too long, say) is written to ``error`` for the parent to
tell.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, however that comes about.

    Args:
        parent: the pid that the parent has; another one now means that it is dead already.
    """
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG (linux/prctl.h)
    if os.getppid() != parent:
        os._exit(1)


def compose(keys: dict[str, Any], overrides: list[str]) -> Any:
    """verl's SFT configuration with our keys, then the user's ``key=value`` strings.

    Raises:
        UserError: an override that verl's configuration does not know or cannot read.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with initialize_config_module("verl.trainer.config", version_base=None):
        try:
            config = hydra_compose("sft_trainer_engine", overrides=overrides)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError("--set", " ".join(overrides), str(error).splitlines()[0]) from error
    chosen = {override.lstrip("+~").split("=", 1)[0] for override in overrides}
    OmegaConf.set_struct(config, False)
    for key, value in keys.items():
        if key not in chosen:
            OmegaConf.update(config, key, value, force_add=True)
    return config


def main(argv: list[str]) -> int:
    """Train; the exit status is 0, or 2 after a wrong input."""
    job = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    die_with_parent(os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else job["parent"])
    if argv[1:2] == ["--torchrun"]:
        from torch.distributed.run import main as torchrun

        torchrun(
            ["--standalone", "--nnodes=1", f"--nproc-per-node={argv[2]}", "-m", "scout_sft.worker", argv[0]]
        )
        return 0
    try:
        config = compose(job["keys"], job["overrides"])
        import torch

        torch.manual_seed(job["seed"])  # verl seeds nothing here, and adapters begin at random
        from verl.trainer.sft_trainer import run_sft
        from verl.utils.device import auto_set_device

        auto_set_device(config)
        run_sft(config)
    except UserError as error:
        report = Path(job["error"])
        partial = report.with_name(f"{report.name}.{os.getpid()}")
        partial.write_text(json.dumps([error.field, str(error.value), error.remedy]), encoding="utf-8")
        partial.replace(report)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
