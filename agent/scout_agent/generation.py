"""Batched sampling from a local transformers model: one call, many requests, each with its own limits.

The batch is left-padded; a row that finishes leaves it, so a straggler never decodes at the price of the
whole batch. What comes back are the sampled ids and the log-probabilities under the distribution they were
sampled from (after temperature and filters, as vLLM's ``processed_logprobs``).

The token that completes a stop string is kept whole: it is what was sampled. Nothing after it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scout_agent.policy import Finish
from scout_protocol.errors import UserError

# Parameters with a reader below. Everything else is refused, so that no switch is silent.
_READ = {"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "stop_token_ids", "ignore_eos"}
# Parameters of OpenAI-style callers that are accepted at the one value that we implement.
_FIXED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "repetition_penalty": (1, 1.0),
    "include_stop_str_in_output": (True,),
    "logprobs": (None, 0, 1, True, False),
    "skip_special_tokens": (False, True),  # we return ids; text is the caller's affair
    "spaces_between_special_tokens": (False, True),
    "detokenize": (True, False),
    "min_tokens": (0,),
    "seed": (None,),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One continuation to sample: prompt ids and vLLM-style sampling parameters."""

    prompt_ids: Sequence[int]
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """Sampled ids with one log-probability each, why it stopped, and the stop string where that was it."""

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_str: str | None = None


@dataclass(slots=True)
class _Row:
    """A request's limits, read once."""

    request: Request
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    limit: int
    stops: tuple[str, ...]
    window: int  # how many last tokens can contain a stop string
    ends: frozenset[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    stop_str: str | None = None


class Engine:
    """Samples from ``model`` for many requests at once.

    Args:
        model: a causal LM of transformers, in eval mode, on one device.
        tokenizer: its tokenizer.
        eos_ids: ids that end a message.
        default_max_tokens: limit where a request sets none.
        max_model_len: prompt and continuation together never exceed it.
        seed: of the sampling generator; the same calls in the same order give the same tokens.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_ids: Sequence[int],
        default_max_tokens: int,
        max_model_len: int,
        seed: int = 0,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.default_max_tokens, self.max_model_len = default_max_tokens, max_model_len
        self.device = next(model.parameters()).device
        self.rng = torch.Generator(device=self.device).manual_seed(seed)
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0)
        self._pieces = [tokenizer.decode([i]) for i in range(len(tokenizer))]
        self._enders: dict[tuple[str, ...], frozenset[int]] = {}

    def _stop_enders(self, stops: tuple[str, ...]) -> frozenset[int]:
        """Ids that could complete a stop string: their text holds the last character of one.

        A token that is part of a character decodes to U+FFFD and is checked too.
        """
        if stops not in self._enders:
            last = {s[-1] for s in stops}
            self._enders[stops] = frozenset(
                i
                for i, piece in enumerate(self._pieces)
                if "\ufffd" in piece or any(c in piece for c in last)
            )
        return self._enders[stops]

    def _row(self, request: Request) -> _Row:
        p = request.params
        for key, value in p.items():
            if key not in _READ and (key not in _FIXED or value not in _FIXED[key]):
                raise UserError(f"sampling parameter {key}", value, "is not implemented by the local engine")
        room = self.max_model_len - len(request.prompt_ids)
        if room < 1 or not request.prompt_ids:
            raise UserError(
                "prompt", f"{len(request.prompt_ids)} tokens", f"must be 1 to {self.max_model_len - 1} tokens"
            )
        raw = p.get("stop") or ()
        stops = (raw,) if isinstance(raw, str) else tuple(raw)
        eos = frozenset() if p.get("ignore_eos") else self.eos_ids
        limit = p.get("max_tokens")
        return _Row(
            request,
            temperature=float(p.get("temperature", 1.0)),
            top_p=float(p.get("top_p", 1.0)),
            top_k=int(p.get("top_k", -1) or -1),
            min_p=float(p.get("min_p", 0.0)),
            limit=max(1, min(int(self.default_max_tokens if limit is None else limit), room)),
            stops=stops,
            window=max((len(s.encode()) for s in stops), default=0) + 1,  # a token is at least one byte
            ends=eos | frozenset(p.get("stop_token_ids") or ()),
        )

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Sample every request to its end, in one batch.

        Raises:
            UserError: a sampling parameter that is not implemented, or a prompt that does not fit.
        """
        rows = [self._row(r) for r in requests]
        live, width = list(rows), max((len(r.prompt_ids) for r in requests), default=0)
        padded = [[self.pad_id] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests]
        ids_BT = torch.tensor(padded, device=self.device)
        mask_BT = torch.tensor(
            [[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in requests],
            device=self.device,
        )
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        past: Any = None
        while live:
            out = self.model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=past,
                use_cache=True,
                logits_to_keep=1,
            )
            past = out.past_key_values
            next_B, logprob_B = self._sample(out.logits[:, -1].float(), live)
            keep = [
                i
                for i, (row, token, logprob) in enumerate(
                    zip(live, next_B.tolist(), logprob_B.tolist(), strict=True)
                )
                if not self._append(row, token, logprob)
            ]
            if not keep:
                break
            last_BT = positions_BT[:, -1:]
            if len(keep) < len(live):
                live = [live[i] for i in keep]
                index = torch.tensor(keep, device=self.device)
                next_B, mask_BT, last_BT = next_B[index], mask_BT[index], last_BT[index]
                past.batch_select_indices(index)
            ids_BT, positions_BT = next_B[:, None], last_BT + 1
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(live), 1)], dim=1)
        return [Result(r.ids, r.logprobs, r.finish, r.stop_str) for r in rows]

    def _append(self, row: _Row, token: int, logprob: float) -> bool:
        """Add a sampled token; True when the row is finished by it."""
        row.ids.append(token)
        row.logprobs.append(logprob)
        if token in row.ends:
            row.finish = Finish.EOS
            return True
        if row.stops and token in self._stop_enders(row.stops):
            tail = self.tokenizer.decode(row.ids[-row.window :])
            hits = [(tail.find(s), s) for s in row.stops if s in tail]
            if hits:
                row.finish, row.stop_str = Finish.STOP, min(hits)[1]
                return True
        return len(row.ids) >= row.limit

    def _sample(self, logits_BV: torch.Tensor, rows: list[_Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """One token per row and its log-probability. Temperature 0 takes the most probable token."""

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=self.device)[:, None]

        temperature = column([r.temperature for r in rows])
        logits_BV = logits_BV / torch.where(temperature > 0, temperature, 1.0)
        if any(r.top_k > 0 or r.top_p < 1 or r.min_p > 0 for r in rows):
            top_k = column([float(r.top_k if r.top_k > 0 else logits_BV.shape[1]) for r in rows])
            ranked, order = logits_BV.sort(-1, descending=True)
            probs = ranked.softmax(-1)
            rank = torch.arange(ranked.shape[1], device=self.device)[None]
            drop = rank >= top_k
            drop |= (probs.cumsum(-1) - probs) > column([r.top_p for r in rows])
            drop |= probs < column([r.min_p for r in rows]) * probs[:, :1]
            drop[:, 0] = False
            kept = ranked.masked_fill(drop, -torch.inf)
            logits_BV = torch.full_like(logits_BV, -torch.inf).scatter(1, order, kept)
        logp_BV = logits_BV.log_softmax(-1)
        drawn = torch.multinomial(logp_BV.exp(), 1, generator=self.rng)[:, 0]
        token_B = torch.where(temperature[:, 0] > 0, drawn, logits_BV.argmax(-1))
        return token_B, logp_BV.gather(1, token_B[:, None])[:, 0]
