"""What a tool server may ask of its clients: a bearer token, and to come back later."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from scout_protocol.errors import UserError


def token_from_env(name: str) -> str:
    """The bearer token in an environment variable; empty where no variable is named. It is never shown.

    Raises:
        UserError: the variable is not set, or its value cannot stand in a header.
    """
    if not name:
        return ""
    value = os.environ.get(name, "")
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise UserError(
            "tools token", f"${name}", "is empty or no token: set the variable to the server's bearer token"
        )
    return value


def check_token(url: str, token: str, timeout_s: float = 5.0) -> None:
    """Ask a server for something that needs the token, before thousands of trajectories are lost to a 401.

    /metrics is what every Scout server protects; a server without such a page asks for no token.

    Raises:
        UserError: the server answers 401.
    """
    request = urllib.request.Request(f"{url.rstrip('/')}/metrics")  # noqa: S310  HttpTools checks the scheme
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=timeout_s).close()
    except urllib.error.HTTPError as error:
        if error.code == 401:
            found = "is not the one it asks for" if token else "is missing"
            remedy = f"its bearer token {found}: name the variable that holds it with --tools-token-env"
            raise UserError("tools", url, remedy) from error
    except (OSError, http.client.HTTPException):
        return  # not there, or no HTTP: whoever calls it next says so, in its own words


def retry_after_s(header: str) -> float | None:
    """Seconds that a ``Retry-After`` asks for (RFC 9110, 10.2.3: seconds or a date); None without one."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, IndexError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
