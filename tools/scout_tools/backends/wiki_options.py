"""What the Wikipedia gateway is told at start: its options, and the checks that need no network."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from scout_protocol.errors import UserError
from scout_tools.backends.network import check_upstream, choose_proxy, contact_from_environment, tls_context

DEFAULT_URL = "https://{language}.wikipedia.org/w/api.php"


class WikiSettings(msgspec.Struct, frozen=True):
    """Options of the gateway.

    Attributes:
        per_second: calls a second, all workers together (Wikimedia bans 0.3 s spacing).
        in_flight: calls at once, all workers together (Wikimedia allows 3).
        cache: a folder, or ``redis://…`` for the store; limits always live in ``folder``.
        empty_ttl_s: how long "no results" is remembered.
    """

    contact: str = ""
    language: str = "en"
    url: str = DEFAULT_URL
    proxy: str | None = None
    ca_bundle: Path | None = None
    insecure_tls_hosts: list[str] = []
    per_second: float = 2.0
    in_flight: int = 3
    tries: int = 5
    summary_chars: int = 1200
    folder: Path = Path()
    redis: str | None = None
    cache_gb: float = 8.0
    empty_ttl_s: float = 600.0

    @property
    def endpoint(self) -> str:
        return self.url.replace("{language}", self.language)

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).hostname or ""


def default_folder() -> Path:
    """Where cache and limits live unless told otherwise: one place per user, which all servers share."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "scout" / "wikipedia"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The gateway's options, as a group of their own."""
    group = parser.add_argument_group("wikipedia", "SCOUT_WIKI_CONTACT must hold your e-mail address or URL")
    add = group.add_argument
    default = WikiSettings()
    add("--language", default="en", help="of Wikipedia, e.g. en, de, zh (default %(default)s)")
    add("--wiki-url", default=DEFAULT_URL, help="api.php of another wiki, HTTPS only (default %(default)s)")
    add("--proxy", metavar="URL", help="forward proxy for Wikipedia; default: HTTPS_PROXY and NO_PROXY")
    add("--ca-bundle", type=Path, metavar="FILE", help="PEM certificates to trust besides the system's")
    add("--insecure-tls-host", action="append", default=[], metavar="NAME", help="do not verify this host")
    add("--wiki-rate", type=float, default=default.per_second, help="calls a second (default %(default)s)")
    add("--summary-chars", type=int, default=default.summary_chars, help="per document (default %(default)s)")
    add("--cache-dir", type=Path, metavar="DIR", help="cache and limits (default ~/.cache/scout/wikipedia)")
    add("--cache-url", metavar="URL", help="redis://host:port/db: a store that several hosts share")
    add("--cache-gb", type=float, default=default.cache_gb, help="largest store (default %(default)s)")
    add("--empty-ttl-s", type=float, default=default.empty_ttl_s, help="memory of no results (%(default)s)")


def wiki_settings(args: argparse.Namespace) -> WikiSettings:
    """The checked options.

    Raises:
        UserError: naming the option or variable.
    """
    if not re.fullmatch(r"[a-z]{2,12}(-[a-z]{2,12}){0,2}", args.language):
        raise UserError("--language", args.language, "give a language code of Wikipedia, e.g. en, de, zh")
    bounds: dict[str, tuple[float, float]] = {
        "wiki_rate": (0.001, 1000),
        "summary_chars": (50, 100_000),
        "cache_gb": (0.01, 4096),
        "empty_ttl_s": (0, 1e9),
    }
    for name, (low, high) in bounds.items():
        if not low <= getattr(args, name) <= high:
            field = f"--{name.replace('_', '-')}"
            raise UserError(field, getattr(args, name), f"must be between {low:g} and {high:g}")
    if args.cache_url is not None and not args.cache_url.startswith(("redis://", "rediss://", "unix://")):
        raise UserError("--cache-url", args.cache_url, "give redis://host:port/db")
    settings = WikiSettings(
        contact=contact_from_environment(),
        language=args.language,
        url=check_upstream(args.wiki_url),
        proxy=args.proxy,
        ca_bundle=args.ca_bundle,
        insecure_tls_hosts=list(args.insecure_tls_host),
        per_second=args.wiki_rate,
        summary_chars=args.summary_chars,
        folder=(args.cache_dir or default_folder()).absolute(),
        redis=args.cache_url,
        cache_gb=args.cache_gb,
        empty_ttl_s=args.empty_ttl_s,
    )
    check_upstream(settings.endpoint)
    choose_proxy(settings.endpoint, settings.proxy)
    tls_context(settings.host, settings.ca_bundle, settings.insecure_tls_hosts)
    return settings
