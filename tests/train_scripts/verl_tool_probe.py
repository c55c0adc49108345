"""Runs in .venv-verl-tool: plays scripted turns through verl-tool's real agent loop, asks for logits.

    python verl_tool_probe.py CONFIG.yaml MODEL < scenarios.json

A scenario is ``{"turns": [text, …], "set": {key: value}, "delay_s": s}``; one JSON line comes out for each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import torch
import verl  # noqa: F401  (loads the engine's plug-ins)
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl_tool.agent_loop.agent_loop import _DummyConfig

from scout_data.rows import make_row
from scout_train.verl_tool.agent_loop import GROUP, LOST, MEMBER, STEP, TRACE, ScoutVerlToolLoop
from scout_train.verl_tool.rollout import TurnOutput


class Script:
    """An inference client that writes what it was given; the last token may be cut by ``max_tokens``."""

    def __init__(self, tokenizer: Any, turns: list[str], delay_s: float) -> None:
        self.tokenizer, self.turns, self.delay_s = tokenizer, list(turns), delay_s

    async def generate(self, request_id: str, *, sampling_params: dict[str, Any], **_: Any) -> TurnOutput:
        await asyncio.sleep(self.delay_s)
        ids = self.tokenizer.encode(self.turns.pop(0))[: sampling_params["max_tokens"]]
        return TurnOutput(token_ids=ids, log_probs=[-1.0] * len(ids), text="", finished=True)


async def play(config: Any, tokenizer: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    config = OmegaConf.merge(config, OmegaConf.create({}))
    for key, value in scenario.get("set", {}).items():
        OmegaConf.update(config, key, value)
    ScoutVerlToolLoop.around = None
    row = make_row("What is the capital of Peru?", ["Lima"], "search_r1", "toy", "train", 0)
    prompt = tokenizer.apply_chat_template(row.prompt, add_generation_prompt=True, tokenize=False)
    fields = {
        "raw_prompt_ids": tokenizer.encode(prompt, add_special_tokens=False),
        "raw_prompt": row.prompt,
        **{k: getattr(row, k) for k in ("data_source", "ability", "reward_model", "extra_info")},
        **{k: getattr(row, k) for k in ("id", "question", "golden_answers")},
        **{STEP: 7, GROUP: "g", MEMBER: 3, "validate": False},
    }
    client = Script(tokenizer, scenario["turns"], scenario.get("delay_s", 0.0))
    loop = ScoutVerlToolLoop(_DummyConfig(config), client, tokenizer, None)
    out = await loop.run({"temperature": 1.0}, **fields)
    await loop.mine.connection.__aexit__(None, None, None)
    pairs = list(zip(out.response_ids, out.response_mask, strict=True))
    return {
        "trace": json.loads(out.extra_fields[TRACE]),
        "lost": out.extra_fields[LOST],
        "reward": out.reward_score,
        "parts": out.extra_fields["reward_extra_info"],
        "trained": tokenizer.decode([i for i, m in pairs if m]),
        "given": tokenizer.decode([i for i, m in pairs if not m]),
        "tokens": len(pairs),
        "logprobs": [float(x) for x in out.response_logprobs],
        "mask": [m for _, m in pairs],
    }


async def main() -> None:
    config, model_dir = OmegaConf.load(sys.argv[1]), sys.argv[2]
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    for scenario in json.load(sys.stdin):
        if "logits_of" in scenario:
            model = AutoModelForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float32)
            with torch.no_grad():
                logits = model(torch.tensor([scenario["logits_of"]])).logits[0, -1]
            found = {"logits": logits.tolist(), "ids": tokenizer.encode(scenario["text"])}
        else:
            found = await play(config, tokenizer, scenario)
        print("PROBE" + json.dumps(found), flush=True)


asyncio.run(main())
