"""Browsers: forged sessions, forms of other sites, names that point here, proxies."""

from __future__ import annotations

import secrets
from functools import partial

from app.api.auth.visitors import HOST_PREFIX, OPERATOR_COOKIE, TENANT_COOKIE
from loadtest.attack.attacker import REFUSED
from loadtest.attack.corpus.origins import FOREIGN_HOSTS, FORWARDING, OTHER_SITES
from loadtest.attack.corpus.routes import CONSOLE, TENANT_PAGE
from loadtest.attack.plan import Round, Scale
from loadtest.attack.rounds.keys import asked, guarded
from loadtest.attack.stage import Stage, sign_in

CLIENTS = 6
#: A page without a session is a problem document, not the way to the sign-in.
SAME_SITE = {"Accept": "application/json", "Sec-Fetch-Site": "same-origin"}
FETCHED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
SIGN_IN = {"key": "fair_x_y", "next": "//evil.example"}


def forged_sessions(stage: Stage, scale: Scale) -> None:
    """Tokens that nobody gave out, keys in their place, and sessions of the other kind."""
    own = sign_in(stage, stage.keys.hostile).partition("=")[2]
    tokens = ["", "0", "A" * 43, "%00" * 20, "é" * 40, secrets.token_urlsafe(32)]
    tokens += [stage.keys.victim, stage.keys.hostile, f"{own}0", own[::-1]]
    calls = []
    for method, call in guarded():
        if call.access not in (CONSOLE, TENANT_PAGE):
            continue
        cookie = OPERATOR_COOKIE if call.access is CONSOLE else TENANT_COOKIE
        values = [f"{cookie}={token}" for token in tokens]
        # A session of the tenant, where an operator's is wanted.
        values += [f"{OPERATOR_COOKIE}={own}", f"{HOST_PREFIX}{OPERATOR_COOKIE}={own}"]
        for value in values:
            headers = {**SAME_SITE, "Cookie": value}
            calls.append(partial(asked(stage, method, call, headers=headers), REFUSED))
    stage.attacker.repeat(calls, scale.of(CLIENTS), scale.seconds, one_in=scale.one_in)


def other_sites(stage: Stage, scale: Scale) -> None:
    """The victim and an operator are signed in, and look at a page of somebody else."""
    sessions = {
        TENANT_PAGE: sign_in(stage, stage.keys.victim),
        CONSOLE: sign_in(stage, stage.keys.operator, operator=True),
    }
    calls = []
    for method, call in guarded():
        if call.access not in sessions:
            continue
        sites = (FETCHED,) if method == "GET" else OTHER_SITES
        for site in sites:
            headers = {**site, "Cookie": sessions[call.access]}
            calls.append(partial(asked(stage, method, call, headers=headers), REFUSED))
    ask = stage.attacker.ask
    for path in ("/console/sign-in", "/console/sign-out"):
        calls += [
            partial(ask, "POST", path, REFUSED, headers=site, form=SIGN_IN) for site in OTHER_SITES
        ]
    stage.attacker.repeat(calls, scale.of(CLIENTS), scale.seconds, one_in=scale.one_in)


def elsewhere(stage: Stage, scale: Scale) -> None:
    """Callers without a key where this machine needs none: by other names, through proxies."""
    pretended = [{"Host": host} for host in FOREIGN_HOSTS]
    pretended += [{name: value} for name, _, value in (line.partition(": ") for line in FORWARDING)]
    calls = [
        partial(asked(stage, method, call, headers=headers, port=port), REFUSED)
        for port, some in ((stage.open_port, 1), (stage.port, 6))
        for method, call in guarded()
        for headers in pretended[::some]
    ]
    stage.attacker.repeat(calls, scale.of(CLIENTS), scale.seconds, one_in=scale.one_in)


ROUNDS = (
    Round("forged sessions", forged_sessions),
    Round("forms of other sites", other_sites),
    Round("other names and proxies", elsewhere),
)
