"""One HTTPS client for one MediaWiki: calls through the gate, retries what may pass, names what does not."""

from __future__ import annotations

import asyncio
import random
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from scout_tools.backends.base import BackendError, Counters
from scout_tools.backends.mediawiki import api_error
from scout_tools.backends.network import choose_proxy, tls_context
from scout_tools.backends.wiki_options import WikiSettings
from scout_tools.limiter import Gate

BACKOFF_S = 0.5
MAX_BACKOFF_S = 20.0
MAX_ANSWER_BYTES = 8 << 20
_BUSY = ("maxlag", "readonly", "cirrussearch-too-busy-error", "cirrussearch-backend-error")


class CallError(Exception):
    """One call that failed.

    Args:
        retry: whether the same call may succeed later.
        pause_s: how long the upstream wants everyone to wait; None if it did not say.
        broken: whether it says that the upstream is down, which the circuit breaker counts.
    """

    def __init__(
        self, kind: str, detail: str, retry: bool = True, pause_s: float | None = None, broken: bool = True
    ) -> None:
        self.kind, self.detail, self.retry, self.pause_s, self.broken = kind, detail, retry, pause_s, broken
        super().__init__(f"{kind}: {detail}")


class WikiClient:
    """Calls one api.php.

    Raises:
        UserError: the proxy or the certificates are not usable.
    """

    def __init__(self, settings: WikiSettings, gate: Gate, counters: Counters) -> None:
        self._settings, self._gate, self._counters = settings, gate, counters
        self.proxy = choose_proxy(settings.endpoint, settings.proxy)
        tls = tls_context(settings.host, settings.ca_bundle, settings.insecure_tls_hosts)
        self._http = httpx.AsyncClient(
            verify=tls,
            # The environment was read by our own rules; httpx must not read it again.
            trust_env=False,
            proxy=_proxy(self.proxy, settings) if self.proxy else None,
            headers={"User-Agent": user_agent(settings.contact), "Accept": "application/json"},
            limits=httpx.Limits(max_connections=settings.in_flight, keepalive_expiry=60.0),
            timeout=httpx.Timeout(None, connect=10.0),
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, params: dict[str, str], deadline: float) -> dict[str, Any]:
        """The JSON object that the API answers.

        Args:
            deadline: of the event loop's clock; all waiting and retrying ends before it.

        Raises:
            BackendError: it did not answer; ``kind`` says why.
        """
        tries = 0
        while True:
            tries += 1
            async with self._gate.permit(deadline):
                self._counters["upstream_calls"] += 1
                try:
                    body = await self._once(params, deadline)
                except CallError as error:
                    failure = error
                    self._failed(error, tries)  # before the slot is free: the next in line must see the pause
                else:
                    self._gate.state.succeeded()
                    return body
            wait = backoff_s(tries)
            late = asyncio.get_running_loop().time() + wait >= deadline
            if not failure.retry or tries >= self._settings.tries or late:
                raise BackendError(failure.kind, f"{failure.detail} (after {tries} tries)") from failure
            self._counters["upstream_retries"] += 1
            self._counters["upstream_wait_seconds:backoff"] += wait
            await asyncio.sleep(wait)

    def _failed(self, error: CallError, tries: int) -> None:
        self._counters[f"upstream_failures:{error.kind}"] += 1
        if error.pause_s is not None:
            self._gate.state.pause(error.pause_s)
        elif error.kind == "rate_limited":
            self._gate.state.pause(backoff_s(tries + 1))  # told to wait, but not for how long
        if error.broken and self._gate.state.failed():
            self._counters["circuit_opened"] += 1

    async def _once(self, params: dict[str, str], deadline: float) -> dict[str, Any]:
        try:
            async with (
                asyncio.timeout_at(deadline),
                self._http.stream("GET", self._settings.endpoint, params=params) as response,
            ):
                pieces, size = [], 0
                async for piece in response.aiter_bytes():
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_ANSWER_BYTES:
                        raise CallError("bad_response", f"more than {MAX_ANSWER_BYTES} bytes")
        except TimeoutError as error:
            raise CallError("timeout", "no complete answer before the deadline", retry=False) from error
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise self._transport_error(error) from error
        return read_response(response.status_code, response.headers, b"".join(pieces))

    def _transport_error(self, error: Exception) -> CallError:
        text = " ".join(str(error).split()) or type(error).__name__
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return CallError("tls", f"certificate refused: {cause.verify_message}", retry=False)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ProxyError):
            return CallError("proxy", text, retry=not text.startswith("407"))
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return CallError("proxy" if self.proxy else "connect", text)
        if isinstance(error, httpx.DecodingError):
            return CallError("bad_response", text)
        return CallError("connection_lost", text)


def _proxy(url: str, settings: WikiSettings) -> httpx.Proxy:
    if not url.startswith("https"):
        return httpx.Proxy(url)
    host = urlsplit(url).hostname or ""
    return httpx.Proxy(url, ssl_context=tls_context(host, settings.ca_bundle, settings.insecure_tls_hosts))


def user_agent(contact: str) -> str:
    """Name, version and contact, as Wikimedia's User-Agent policy wants them."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("scout-rl")
    except PackageNotFoundError:
        own = "0"
    return f"scout-rl/{own} ({contact}) httpx/{httpx.__version__}"


def backoff_s(tries: int) -> float:
    """Exponential with jitter and a ceiling: at least half of it, so that a retry is never at once."""
    full = min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (tries - 1))
    return full * random.uniform(0.5, 1.0)


def retry_after_s(headers: httpx.Headers) -> float | None:
    """Seconds that ``Retry-After`` asks for, in either of its forms; None if absent or not readable."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return seconds if 0.0 <= seconds < float("inf") else None
    until, sent = _date(value), _date(headers.get("date", ""))
    if until is None:
        return None
    # The difference to the server's own clock, which need not agree with ours.
    return max(0.0, (until - (sent or datetime.now(UTC))).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def read_response(status: int, headers: httpx.Headers, body: bytes) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        CallError: a status, an error inside a 200, or a body that is no JSON object.
    """
    pause = retry_after_s(headers)
    start = " ".join(body[:120].decode(errors="replace").split())
    if status == 429:
        raise CallError("rate_limited", f"429: {start}", pause_s=pause, broken=False)
    if status == 403:
        raise CallError("upstream_blocked", f"403: {start}", retry=False)
    if status >= 500:
        kind = "upstream_busy" if status == 503 else "upstream_error"
        raise CallError(kind, f"{status}: {start}", pause_s=pause)
    if status != 200:
        raise CallError("bad_response", f"status {status}: {start}", retry=False)
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if b"too many requests" in body[:2000].lower():
            raise CallError("rate_limited", f"200: {start}", pause_s=pause, broken=False) from error
        raise CallError("bad_response", f"not JSON: {start}", pause_s=pause) from error
    if not isinstance(answer, dict):
        raise CallError("bad_response", f"not an object: {start}")
    failed = api_error(answer)
    if failed is not None:
        code, info = failed
        if code == "ratelimited":
            raise CallError("rate_limited", info, pause_s=pause, broken=False)
        if code in _BUSY or code.startswith("internal_api_error") or "too busy" in info.lower():
            raise CallError("upstream_busy", f"{code}: {info}", pause_s=pause)
        raise CallError("api_error", f"{code}: {info}", retry=False, broken=False)
    return answer
