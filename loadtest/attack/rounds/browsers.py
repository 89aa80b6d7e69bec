"""Browsers: forged sessions, forms of other sites, names that point here, proxies."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from app.api.auth.visitors import HOST_PREFIX, OPERATOR_COOKIE, TENANT_COOKIE
from loadtest.attack.attacker import REFUSED
from loadtest.attack.corpus.origins import FOREIGN_HOSTS, FORWARDING, OTHER_SITES
from loadtest.attack.corpus.routes import CONSOLE, TENANT_PAGE
from loadtest.attack.rounds.keys import asked, guarded
from loadtest.attack.rounds.kinds import Repeated
from loadtest.attack.stage import Stage

Calls = list[Callable[[], object]]
#: A page without a session is a problem document, not the way to the sign-in.
SAME_SITE = {"Accept": "application/json", "Sec-Fetch-Site": "same-origin"}
FETCHED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
SIGN_IN = {"key": "fair_x_y", "next": "//evil.example"}
COOKIES = {TENANT_PAGE: TENANT_COOKIE, CONSOLE: OPERATOR_COOKIE}
PAGES = [(method, call) for method, call in guarded() if call.access in COOKIES]


def forged_sessions(stage: Stage) -> Calls:
    """Tokens that nobody gave out, keys in their place, and sessions of the other kind."""
    own = stage.sign_in(stage.keys.hostile, TENANT_COOKIE)
    tokens = ["", "0", "A" * 43, "%00" * 20, "é" * 40, secrets.token_urlsafe(32)]
    tokens += [stage.keys.victim, stage.keys.hostile, f"{own}0", own[::-1]]
    # A session of the tenant, where an operator's is wanted.
    others = [f"{OPERATOR_COOKIE}={own}", f"{HOST_PREFIX}{OPERATOR_COOKIE}={own}"]
    return [
        partial(asked(stage, method, call, headers={**SAME_SITE, "Cookie": value}), REFUSED)
        for method, call in PAGES
        for value in (*(f"{COOKIES[call.access]}={token}" for token in tokens), *others)
    ]


def other_sites(stage: Stage) -> Calls:
    """The victim and an operator are signed in, and look at a page of somebody else."""
    keys = {TENANT_PAGE: stage.keys.victim, CONSOLE: stage.keys.operator}
    cookies = {
        access: f"{cookie}={stage.sign_in(keys[access], cookie)}"
        for access, cookie in COOKIES.items()
    }
    calls: Calls = [
        partial(
            asked(stage, method, call, headers=site | {"Cookie": cookies[call.access]}), REFUSED
        )
        for method, call in PAGES
        for site in ((FETCHED,) if method == "GET" else OTHER_SITES)
    ]
    signing = partial(stage.attacker.ask, "POST", form=SIGN_IN)
    for path in ("/console/sign-in", "/console/sign-out"):
        calls += [partial(signing, path, REFUSED, headers=site) for site in OTHER_SITES]
    return calls


def elsewhere(stage: Stage) -> Calls:
    """Callers without a key where this machine needs none: by other names, through proxies."""
    pretended = [{"Host": host} for host in FOREIGN_HOSTS]
    pretended += [dict([line.split(": ", 1)]) for line in FORWARDING]
    return [
        partial(asked(stage, method, call, headers=headers, port=port), REFUSED)
        for port, step in ((stage.open_port, 1), (stage.port, 6))
        for method, call in guarded()
        for headers in pretended[::step]
    ]


ROUNDS = (
    Repeated("forged sessions", forged_sessions),
    Repeated("forms of other sites", other_sites),
    Repeated("other names and proxies", elsewhere),
)
