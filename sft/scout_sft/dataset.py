"""Demonstrations as tokens: the very stream that the trainer's rollouts and evaluation produce.

The prompt goes through the chat template with the generation prompt; every policy turn and every
observation is encoded by itself and appended. After the final answer there is no `<|im_end|>`: a rollout
stops at the closing answer marker, so the token never occurs there, and training it would teach a
continuation that the loss of reinforcement learning never sees.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scout_agent.transformers_policy import observation_token_ids, prompt_token_ids
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import SFTRow, SFTTurn

if TYPE_CHECKING:
    import torch

OVERLONG = ("error", "drop", "cut")


@dataclass(frozen=True, slots=True)
class Encoded:
    """One demonstration: token ids and, for each, 1 where the policy is to be trained on it."""

    input_ids: list[int]
    loss_mask: list[int]


@dataclass(slots=True)
class Facts:
    """What became of the demonstrations; printed before training."""

    kept: int = 0
    dropped: int = 0
    cut: int = 0
    n_tokens: int = 0
    n_loss_tokens: int = 0
    longest: int = 0


def encode_demo(
    row: SFTRow, tokenizer: Any, dialect: Dialect, max_obs_tokens: int, max_length: int | None = None
) -> Encoded:
    """Tokens of a demonstration, cut before the first turn that would not fit into ``max_length``.

    A cut demonstration ends with a policy turn: an observation at the end carries no loss.

    Args:
        row: the demonstration; its ``turns`` are what counts, ``messages`` gives the prompt.
        max_obs_tokens: the rollouts' limit for one observation.
        max_length: limit for the whole, in tokens; None for none.

    Raises:
        UserError: the row has no prompt, no turns, or a turn that is not what it says.
    """
    prompt = (
        row.messages[:-1] if row.messages and row.messages[-1].get("role") == "assistant" else row.messages
    )
    if not prompt:
        raise UserError(f"demonstration {row.id}", "no prompt", "messages must start with the prompt")
    if not row.turns:
        raise UserError(f"demonstration {row.id}", "no turns", "needs policy and tool turns")
    ids = prompt_token_ids(tokenizer, prompt)
    mask = [0] * len(ids)
    end = 0  # tokens up to the last policy turn that fits
    for turn in row.turns:
        ids_of_turn = _turn_ids(row.id, turn, tokenizer, dialect, max_obs_tokens)
        if max_length is not None and len(ids) + len(ids_of_turn) > max_length:
            break
        ids += ids_of_turn
        mask += [int(turn.loss)] * len(ids_of_turn)
        if turn.role == "policy":
            end = len(ids)
    return Encoded(ids[:end], mask[:end])


def _turn_ids(row_id: str, turn: SFTTurn, tokenizer: Any, dialect: Dialect, max_obs_tokens: int) -> list[int]:
    if turn.role == "policy":
        return list(tokenizer.encode(turn.text, add_special_tokens=False))
    if turn.role != "tool" or turn.loss:
        raise UserError(
            f"demonstration {row_id}", f"{turn.role}, loss={turn.loss}", "only policy turns may have loss"
        )
    return observation_token_ids(tokenizer, turn.text, dialect, max_obs_tokens)


def encode_demos(
    rows: Sequence[SFTRow],
    tokenizer: Any,
    dialect: Dialect,
    max_obs_tokens: int,
    max_length: int,
    overlong: str = "error",
) -> tuple[list[Encoded], Facts]:
    """All demonstrations as tokens, and what became of them.

    Args:
        overlong: what to do with one of more than ``max_length`` tokens: ``error``, ``drop`` it, or ``cut``
            it after the last turn that fits (``drop`` where not even the first does).

    Raises:
        UserError: a demonstration is too long and ``overlong`` is ``error``; none is left; unknown choice.
    """
    if overlong not in OVERLONG:
        raise UserError("overlong", overlong, f"choose one of {', '.join(OVERLONG)}")
    kept: list[Encoded] = []
    facts = Facts()
    for row in rows:
        whole = encode_demo(row, tokenizer, dialect, max_obs_tokens)
        if len(whole.input_ids) > max_length:
            if overlong == "error":
                raise UserError(
                    f"demonstration {row.id}",
                    f"{len(whole.input_ids)} tokens",
                    f"is longer than {max_length}: raise --max-length, or choose --overlong drop or cut",
                )
            whole = encode_demo(row, tokenizer, dialect, max_obs_tokens, max_length)
            if overlong == "drop" or not whole.input_ids:
                facts.dropped += 1
                continue
            facts.cut += 1
        kept.append(whole)
        facts.kept += 1
        facts.n_tokens += len(whole.input_ids)
        facts.n_loss_tokens += sum(whole.loss_mask)
        facts.longest = max(facts.longest, len(whole.input_ids))
    if not kept:
        raise UserError(
            "demonstrations", f"all {facts.dropped} dropped", f"none fits into {max_length} tokens"
        )
    return kept, facts


def draw_order(n_demos: int, n_draws: int, seed: int) -> list[int]:
    """Indices for ``n_draws`` draws: every demonstration once, then all again, shuffled anew."""
    order: list[int] = []
    rng = random.Random(seed)
    while len(order) < n_draws:
        order += rng.sample(range(n_demos), n_demos)
    return order[:n_draws]


def sort_batches(order: Sequence[int], lengths: Sequence[int], batch: int) -> list[int]:
    """The same batches with each batch's members in order of length.

    A batch is split into passes in this order, so a pass pads little; the gradient of the batch is the same.
    """
    starts = range(0, len(order), batch)
    return [
        i for start in starts for i in sorted(order[start : start + batch], key=lambda i: (lengths[i], i))
    ]


def undo_sampler(n: int) -> list[int]:
    """The place at which torch's `DistributedSampler` (shuffle, seed 0, epoch 0) draws each index.

    verl's SFT trainer always shuffles by seed 0. Looking items up through this map gives our own seeded
    order back, whatever the sampler does: a permutation, undone.
    """
    import torch

    generator = torch.Generator()
    generator.manual_seed(0)
    drawn = torch.randperm(n, generator=generator)
    place = torch.empty_like(drawn)
    place[drawn] = torch.arange(n)
    return [int(p) for p in place]


class DemoDataset:
    """`data.custom_cls` of verl 0.9.1's SFT trainer (``verl.trainer.sft_trainer``), map style.

    Config keys, all under ``data``: ``max_length``, ``pad_mode`` (must be ``no_padding``), and Scout's own
    ``scout: {dialect, max_obs_tokens, overlong, seed, draws, facts}``; ``facts`` is a file to write `Facts`
    to, or absent. ``draws`` is the length of the dataset: the
    whole training is one epoch of ``steps x batch`` draws, because a run that verl resumes at the border of
    two epochs sees an empty epoch first. 0 means each demonstration once, in order (validation).
    """

    def __init__(
        self,
        parquet_files: Any,
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        from scout_sft.rows import read_demos

        if config.get("pad_mode") != "no_padding":
            raise UserError("data.pad_mode", config.get("pad_mode"), "must be no_padding")
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        rows = [row for file in files for row in read_demos(file)]
        if max_samples > 0:
            rows = rows[:max_samples]
        own = config["scout"]
        self.items, self.facts = encode_demos(
            rows,
            tokenizer,
            get_dialect(own["dialect"]),
            int(own["max_obs_tokens"]),
            int(config["max_length"]),
            str(own["overlong"]),
        )
        draws = 0 if files == list(config.get("val_files") or ()) else int(own["draws"])
        self.order = list(range(len(self.items)))
        if draws and own.get("facts"):
            Path(own["facts"]).write_text(json.dumps(asdict(self.facts)), encoding="utf-8")
        if draws:
            mine = sort_batches(
                draw_order(len(self.items), draws, int(own["seed"])),
                [len(item.input_ids) for item in self.items],
                int(config["train_batch_size"]),
            )
            self.order = [mine[place] for place in undo_sampler(draws)]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """``input_ids``, ``position_ids`` and ``loss_mask``, each int64 of shape (tokens,)."""
        import torch

        item = self.items[self.order[index]]
        return {
            "input_ids": torch.tensor(item.input_ids),
            "position_ids": torch.arange(len(item.input_ids)),
            "loss_mask": torch.tensor(item.loss_mask),
        }
