"""A plug-in for proxy.py: it knows where en.wikipedia.test is, as a corporate proxy knows the outside."""

from __future__ import annotations

from proxy.http.proxy import HttpProxyBasePlugin


class TestNames(HttpProxyBasePlugin):
    """Resolves *.wikipedia.test to this machine; everything else is resolved as usual."""

    __test__ = False  # not a test, whatever its name says

    def resolve_dns(self, host: str, port: int) -> tuple[str | None, tuple[str, int] | None]:
        return ("127.0.0.1", None) if host.endswith(".wikipedia.test") else (None, None)
