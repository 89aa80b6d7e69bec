"""What the database keeps apart if the application's own checks do not.

They are switched off here: every row counts as the caller's own, and all statements of a request
get the id of another tenant. Only the scope of the caller is left, as ``authorize`` sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.api.auth import access
from app.errors import NotFound
from app.log_ids import CALLER
from app.server import wsgi
from app.tenants import ownership
from loadtest.attack.corpus.routes import CALLS, Call
from models.store.roles import set_tenant
from tests.integration.api.test_isolation import (
    FOREIGN,
    Foreign,
    Knocking,
    People,
    foreign,
    fresh,
    http_client,
    names,
    people,
)

__all__ = ["foreign", "fresh", "http_client", "people"]


def found(row: Any, tenant_id: int) -> Any:
    """In place of ``own``: whosever it is."""
    if row is None:
        raise NotFound
    return row


def switch_checks_off(
    monkeypatch: pytest.MonkeyPatch, tenant_id: int, *then: Callable[[], None]
) -> None:
    """Let requests of any tenant ask for the rows of this one."""
    authorize = access.authorize

    def as_another(services: Any, environ: Any, *declared: Any, **more: Any) -> None:
        authorize(services, environ, *declared, **more)
        caller = environ.get(CALLER)
        if caller is not None and caller.tenant is not None:
            environ[CALLER] = replace(caller, tenant=replace(caller.tenant, id=tenant_id))
        for act in then:
            act()

    monkeypatch.setattr(ownership.own, "__code__", found.__code__)
    monkeypatch.setattr(access, "authorize", as_another)
    monkeypatch.setattr(wsgi, "authorize", as_another)


@pytest.mark.parametrize(("route", "call"), FOREIGN, ids=names(FOREIGN))
def test_without_its_own_checks_no_route_shows_or_changes_another_tenants_rows(
    http_client: Knocking,
    people: People,
    foreign: Foreign,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    route: str,
    call: Call,
) -> None:
    before = foreign.rows()
    switch_checks_off(monkeypatch, foreign.tenant_id)
    answer = http_client.knock(people.acme, route, call, **foreign.ids)
    refused = "violates row-level security policy" in caplog.text
    assert answer.status_code < 500 or refused, "it went wrong before it could show anything"
    if answer.mimetype != "text/event-stream":
        for text in (*foreign.ids.values(), "Foreigner", "outlander"):
            assert text not in answer.text
    else:
        assert "/events" in call.path, "a stream that is not looked into"
    assert not foreign.rows() ^ before


#: What is found out if the scope is missing too, so that the test above can fail.
SEEN = [
    "GET /jobs",
    "GET /jobs/<string(length=36):job_id>",
    "GET /jobs/<job_id>/runs",
    "GET /jobs/<job_id>/wait",
    "GET /leaderboard",
    "GET /schedules",
    "GET /applications/<application_id>/export",
]


@pytest.mark.parametrize("route", SEEN)
def test_without_the_scope_they_would(
    http_client: Knocking,
    people: People,
    foreign: Foreign,
    monkeypatch: pytest.MonkeyPatch,
    route: str,
) -> None:
    switch_checks_off(monkeypatch, foreign.tenant_id, lambda: set_tenant(None))
    answer = http_client.knock(people.acme, route, CALLS[route][0], **foreign.ids)
    assert answer.status_code == 200
    if "<" not in route:  # a list is a 200 also if it is empty
        texts = (*foreign.ids.values(), "Foreigner", "outlander")
        assert any(text in answer.text for text in texts)


def test_a_submission_in_anothers_name_is_refused(
    http_client: Knocking,
    people: People,
    foreign: Foreign,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_checks_off(monkeypatch, foreign.tenant_id)
    answer = http_client.call(people.acme, "POST", "/jobs", {"type": "echo"})
    assert answer.status_code == 404


def test_a_feed_in_anothers_name_is_refused(
    http_client: Knocking,
    people: People,
    foreign: Foreign,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_checks_off(monkeypatch, foreign.tenant_id)
    assert http_client.call(people.acme, "GET", "/events").status_code == 404
