"""Run in an environment that holds Scout's base install and nothing else."""

from __future__ import annotations

import importlib.util
import sys

HEAVY = ("torch", "ray", "verl", "transformers", "numpy", "pyarrow", "locust", "gevent")

for name in HEAVY:
    assert importlib.util.find_spec(name) is None, f"the base install brings {name}"

import scout_tools.app  # noqa: E402, F401

loaded = [name for name in HEAVY if name in sys.modules]
assert not loaded, f"scout_tools.app imports {loaded}"

from scout_cli.main import main  # noqa: E402
from scout_protocol.golden import golden_turns  # noqa: E402
from scout_protocol.prompt import load_prompt, prompt_names  # noqa: E402

assert len(golden_turns()) >= 60
assert [load_prompt(name).name for name in prompt_names()] == prompt_names()
assert main(["doctor", "--need", "base"]) in (0, 1)  # 1 where the machine is small, not where a package is
print("base install: the tool server loads without " + ", ".join(HEAVY))
