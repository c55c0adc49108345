"""Any OpenAI-compatible endpoint as the policy: /v1/chat/completions with the dialect's stop strings.

The stop string itself is not returned by the protocol, so it is put back: the turn that is scored and
traced is the turn as it was written.
"""

from __future__ import annotations

import asyncio
import os
import random
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from scout_agent.policy import Finish, PolicyTurn, PolicyUnavailableError, prompt_span
from scout_agent.scripted import cut_chars
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Author, RLRow, Span
from scout_protocol.turn import Action, Malformed, parse

CHARS_PER_TOKEN = 4  # for cutting observations where the endpoint's tokenizer is not known
RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
STYLES = ("turns", "continue")


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM names the stop string here


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Completion)


class OpenAIPolicy:
    """A policy behind an HTTP endpoint; use as an async context manager.

    Args:
        model: the model's name as the endpoint knows it.
        url: base URL, with or without ``/v1``.
        dialect: name of the dialect.
        api_key_env: name of the environment variable that holds the key; unset means no key is sent.
        style: ``turns`` sends observations as user messages (works everywhere); ``continue`` sends one
            growing assistant message with vLLM's ``continue_final_message``, the stream of RL training.
        timeout_s: per request.
        max_retries: further tries after 408/409/425/429/5xx, a lost connection or a timeout.
        backoff_s: first pause; doubles each time, with jitter; a Retry-After header wins.
        max_backoff_s: longest pause, Retry-After included.
        temperature: sampling temperature.
        max_connections: requests in flight at once.
    """

    def __init__(
        self,
        model: str,
        url: str,
        dialect: str = "search-r1",
        api_key_env: str = "OPENAI_API_KEY",
        style: str = "turns",
        timeout_s: float = 120.0,
        max_retries: int = 5,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
        temperature: float = 0.0,
        max_connections: int = 64,
    ) -> None:
        if not model:
            raise UserError("policy", f"openai:{model}@{url}", "write it as openai:MODEL@URL")
        if not url.startswith(("http://", "https://")):
            raise UserError("policy", url, "the endpoint must be an http:// or https:// URL")
        if style not in STYLES:
            raise UserError("style", style, f"choose one of {', '.join(STYLES)}")
        base = url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        self.name = f"openai:{model}"
        self.model, self.endpoint = model, f"{base}/v1/chat/completions"
        self.dialect, self.style, self.api_key_env = get_dialect(dialect), style, api_key_env
        self.timeout_s, self.max_retries, self.temperature = timeout_s, max_retries, temperature
        self.backoff_s, self.max_backoff_s, self.max_connections = backoff_s, max_backoff_s, max_connections
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> OpenAIPolicy:
        key = os.environ.get(self.api_key_env, "")
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            connector=aiohttp.TCPConnector(limit=self.max_connections),
            trust_env=True,  # unlike the tool server, the endpoint may lie beyond a proxy
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def start(self, row: RLRow) -> OpenAISession:
        """Begin a trajectory; nothing is sent yet."""
        return OpenAISession(self, row)

    async def complete(self, messages: list[dict[str, str]], max_tokens: int, go_on: bool) -> _Completion:
        """One request, retried.

        Raises:
            PolicyUnavailableError: still failing after the last retry.
            UserError: the endpoint refuses the request itself (key, model, parameters).
        """
        if self._http is None:
            raise RuntimeError("OpenAIPolicy is not open: use `async with OpenAIPolicy(…) as policy`")
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "stop": list(self.dialect.stops),
        }
        if go_on:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        kind, pause_s = "", 0.0
        for attempt in range(self.max_retries + 1):
            if attempt:
                await asyncio.sleep(pause_s)
            pause_s = min(self.max_backoff_s, self.backoff_s * 2**attempt) * random.uniform(0.5, 1.0)
            try:
                async with self._http.post(self.endpoint, json=body) as response:
                    raw = await response.read()
                    if response.status == 200:
                        completion = _DECODER.decode(raw)
                        if completion.choices:
                            return completion
                        kind = "bad_response"
                        continue
                    kind = f"http_{response.status}"
                    if response.status not in RETRY_STATUSES:
                        self._refuse(response.status, raw)
                    pause_s = max(pause_s, self._retry_after(response.headers.get("Retry-After", "")))
            except TimeoutError:
                kind = "timeout"
            except aiohttp.ClientError as error:
                kind = f"connection:{type(error).__name__}"
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                kind = "bad_response"
        raise PolicyUnavailableError(kind)

    def _refuse(self, status: int, raw: bytes) -> None:
        # The body is the endpoint's own explanation; the request, which holds the key, is not shown.
        said = raw[:150].decode(errors="replace")
        remedy = (
            f"put a valid key into the environment variable {self.api_key_env}"
            if status in (401, 403)
            else f"check the model name, the URL and the endpoint's limits ({said})"
        )
        raise UserError("policy", f"{self.name} answered HTTP {status}", remedy)

    def _retry_after(self, header: str) -> float:
        try:
            return min(self.max_backoff_s, max(0.0, float(header)))
        except ValueError:  # absent, or a date: the backoff has to do
            return 0.0


class OpenAISession:
    """One conversation with the endpoint."""

    def __init__(self, policy: OpenAIPolicy, row: RLRow) -> None:
        self.policy = policy
        self.prompt = prompt_span(row)
        self.messages = [dict(message) for message in row.prompt]

    async def act(self, max_tokens: int) -> PolicyTurn:
        """Ask for the next turn. Its text ends with the stop string where there was one."""
        go_on = self.messages[-1]["role"] == "assistant"
        completion = await self.policy.complete(self.messages, max_tokens, go_on)
        choice = completion.choices[0]
        text, finish = close_turn(
            choice.message.content or "", choice.finish_reason, choice.stop_reason, self.policy.dialect
        )
        self._append("assistant", text)
        tokens = completion.usage.completion_tokens if completion.usage else None
        return PolicyTurn(text, finish, extra={} if tokens is None else {"completion_tokens": tokens})

    def observe(self, observation: str, max_tokens: int) -> Span:
        """Append an observation, cut at ``max_tokens`` x `CHARS_PER_TOKEN` characters."""
        text = cut_chars(observation, self.policy.dialect, max_tokens * CHARS_PER_TOKEN)
        self._append("user" if self.policy.style == "turns" else "assistant", text)
        return Span(Author.TOOL, text)

    def _append(self, role: str, text: str) -> None:
        if self.policy.style == "continue" and self.messages[-1]["role"] == role == "assistant":
            self.messages[-1]["content"] += text
        else:
            self.messages.append({"role": role, "content": text})


def close_turn(
    text: str, finish_reason: str | None, stop_reason: str | int | None, dialect: Dialect
) -> tuple[str, Finish]:
    """The turn with its stop string put back, and why it ended.

    ``finish_reason`` is "stop" both for a stop string and for the end of the message. vLLM's
    ``stop_reason`` tells them apart; elsewhere an action that was opened and not closed does.
    """
    turn = parse(text, dialect)
    ended = turn.reason not in (Malformed.NO_ACTION, Malformed.NO_CLOSING_TAG)
    if turn.action is not Action.MALFORMED or ended:
        return text[: turn.end], Finish.STOP  # the endpoint kept the stop string, or ignored it and went on
    if finish_reason == "length":
        return text, Finish.LENGTH
    if isinstance(stop_reason, str) and stop_reason in dialect.stops:
        return text + stop_reason, Finish.STOP
    if turn.reason is Malformed.NO_CLOSING_TAG and stop_reason is None:
        is_search = text.rfind(dialect.search.open) > text.rfind(dialect.answer.open)
        return text + (dialect.search.close if is_search else dialect.answer.close), Finish.STOP
    return text, Finish.EOS
