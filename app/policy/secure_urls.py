"""Which URLs are safe to send secrets to: HTTPS, or plain HTTP that does not leave the machine."""

from __future__ import annotations

from urllib.parse import urlsplit

from app.policy.local_callers import is_loopback


def why_not_secure(url: str) -> str:
    """Why a URL is not a safe one of a server; empty: it is."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or not url.isascii():
        return "must be a URL, as https://host"
    if parts.username is not None or parts.query or parts.fragment or not url.isprintable():
        return "must have no user, query or fragment"
    if parts.scheme == "http" and not is_loopback(host):
        return "must begin with https://, except for this machine"
    return ""
