"""How a gateway reaches the outside: which proxy, which certificates, and what is refused.

The rules hold for upstreams only. Rollouts reach this server directly, whatever the environment says.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from scout_protocol.errors import UserError


def check_upstream(url: str, field: str = "--wiki-url") -> str:
    """The URL, if it is HTTPS.

    Raises:
        UserError: plain HTTP, or not a URL.
    """
    parts = urlsplit(url)
    if parts.scheme == "http":
        raise UserError(field, url, "plain HTTP is refused: give an https:// URL")
    try:
        parts.port  # noqa: B018  the property checks the number
    except ValueError as error:
        raise UserError(field, url, f"is not a URL ({error})") from error
    if parts.scheme != "https" or not parts.hostname:
        raise UserError(field, url, "give an https:// URL")
    if parts.username or parts.password:
        raise UserError(field, parts.hostname, "the URL must not hold a user or a password")
    return url


def is_own_address(host: str) -> bool:
    """Whether the host is this machine: loopback, its name, or one of its addresses. Asks no name server."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost") or name == socket.gethostname().lower():
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((str(address), 0))  # only an address of an own interface can be bound
        except OSError:
            return False
    return True


def choose_proxy(url: str, explicit: str | None) -> str | None:
    """The proxy for an upstream, or None for a direct connection.

    ``--proxy`` wins, then the environment (HTTPS_PROXY, ALL_PROXY, minus NO_PROXY). Never for this machine.

    Raises:
        UserError: a proxy that is not a URL; its password is not repeated.
    """
    host = urlsplit(url).hostname or ""
    if is_own_address(host):
        return None
    if explicit:
        return _checked(explicit, "--proxy")
    proxies = getproxies()
    chosen = proxies.get("https") or proxies.get("all")
    if not chosen or proxy_bypass(host):
        return None
    return _checked(chosen, "HTTPS_PROXY")


def hide_password(url: str | None) -> str | None:
    """The proxy as it may be shown: without user and password."""
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def tls_context(host: str, ca_bundle: Path | None, insecure_hosts: list[str]) -> ssl.SSLContext:
    """Certificates for one upstream: the system's and certifi's, and those of ``ca_bundle`` besides.

    Raises:
        UserError: the bundle cannot be read.
    """
    import certifi

    context = ssl.create_default_context(cafile=certifi.where())
    context.load_default_certs()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_bundle is not None:
        try:
            context.load_verify_locations(cafile=str(ca_bundle))
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or error
            raise UserError("--ca-bundle", ca_bundle, f"cannot be read ({why}): give a PEM file") from error
    if is_insecure(host, insecure_hosts):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def is_insecure(host: str, insecure_hosts: list[str]) -> bool:
    """Whether TLS verification is off for this very host."""
    return host.lower() in {name.lower() for name in insecure_hosts}


def _checked(proxy: str, field: str) -> str:
    url = proxy if "://" in proxy else f"http://{proxy}"
    parts = urlsplit(url)
    try:
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits:
        raise UserError(field, hide_password(url), "give http://host:port or https://host:port")
    return url


def contact_from_environment() -> str:
    """Who runs this: Wikimedia's policy wants an address in every call.

    Raises:
        UserError: SCOUT_WIKI_CONTACT is not set, or names nobody who could be reached.
    """
    contact = os.environ.get("SCOUT_WIKI_CONTACT", "").strip()
    remedy = "Wikimedia wants a contact in every call: set it to your e-mail address or a URL"
    if not contact:
        raise UserError("SCOUT_WIKI_CONTACT", "not set", remedy)
    reachable = "@" in contact.strip("@") or contact.startswith(("https://", "http://"))
    if (
        not reachable
        or not contact.isascii()
        or not contact.isprintable()
        or "(" in contact
        or ")" in contact
    ):
        raise UserError("SCOUT_WIKI_CONTACT", contact, remedy)
    return contact
