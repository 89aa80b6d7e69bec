"""Who may do without a key: a direct request from this machine, by a name of this machine.

A caller on this machine may still be somebody else: a page of another site whose name resolves to
127.0.0.1 (DNS rebinding), or a proxy that passes on the requests of strangers. So the peer's
address must be loopback and the ``Host`` too, and there must be no sign of a proxy: neither a
header that proxies add nor HTTP/1.0, which nginx speaks by default before version 1.30 and no
browser does. A proxy on this machine that speaks HTTP/1.1, adds no header and asks by a loopback
``Host`` cannot be detected: behind one, keys must be required.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

#: A ``Host`` header: a name, an IPv4 or a bracketed IPv6 address, and perhaps a port.
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?", re.ASCII)
#: Headers of proxies, as WSGI names them; their values cannot be trusted, so only their presence
#: counts.
FORWARDING = frozenset({"HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP"})
FORWARDING_PREFIX = "HTTP_X_FORWARDED"


def why_not_local(environ: Mapping[str, Any]) -> str:
    """Why a request, as WSGI describes it, is not a direct one from this machine; empty: it is."""
    if not is_loopback(environ.get("REMOTE_ADDR", "")):
        return "it comes from another machine"
    if not is_local_host(environ.get("HTTP_HOST", "")):
        return "its Host header is not localhost or a loopback address"
    if environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        return "it uses HTTP/1.0, as proxies do"
    for name in environ:
        if name in FORWARDING or name.startswith(FORWARDING_PREFIX):
            header = name.removeprefix("HTTP_").replace("_", "-").title()
            return f"it passed a proxy, which added {header}"
    return ""


@lru_cache(maxsize=256)
def is_local_host(host: str) -> bool:
    """Whether a ``Host`` header names this machine."""
    return is_loopback(host_name(host))


def host_name(host: str) -> str:
    """A ``Host`` header without its port; empty if invalid."""
    found = HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]


@lru_cache(maxsize=256)
def is_loopback(name: str) -> bool:
    """Whether a name or address is loopback."""
    if name.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # A dual-stack socket reports an IPv4 caller as a mapped address.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def why_not_listen(hosts: Iterable[str], *, tenant: str, console_open: bool, anywhere: bool) -> str:
    """Why the API must not listen on these addresses, and what to do; empty: it may.

    ``tenant``: of callers without a key, whom ``anywhere`` accepts from other machines too.
    """
    reached = [host for host in hosts if not is_loopback(host)]
    if anywhere or not reached or not (tenant or console_open):
        return ""
    opened = [f"FAIRLINE_ANONYMOUS_TENANT={tenant}"] if tenant else []
    opened += ["FAIRLINE_CONSOLE_OPEN=true"] if console_open else []
    return (
        f"the API would listen on {', '.join(host or 'every address' for host in reached)}, where"
        f" other machines reach it, although callers need no key ({', '.join(opened)}). Require"
        " keys: FAIRLINE_ANONYMOUS_TENANT= FAIRLINE_CONSOLE_OPEN=false, and `flask --app app keys"
        " issue` makes them. Or listen on this machine only: FAIRLINE_HOST=127.0.0.1. Or set"
        " FAIRLINE_ANONYMOUS_FROM=anywhere, and whoever can reach it acts without a key."
    )
