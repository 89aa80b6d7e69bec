"""Where a request says it comes from: other names, proxies and other sites."""

from __future__ import annotations

#: Names that were made to point to this machine.
FOREIGN_HOSTS = ("evil.example", "evil.example:8000", "127.0.0.1.nip.io", "10.1.2.3")

#: Header lines that a proxy adds, as a client may write them itself.
FORWARDING = (
    *("Forwarded: for=127.0.0.1", "Via: 1.1 proxy", "X-Real-IP: 127.0.0.1"),
    *("X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: localhost", "X-Forwarded-Proto: http"),
    *("X-Forwarded-Port: 8000", "X-Forwarded-Server: localhost", "x-forwarded-by: me"),
)

#: What a browser says of a form that a page of another site sends.
OTHER_SITES: tuple[dict[str, str], ...] = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {},
)
