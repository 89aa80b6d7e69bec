"""Scopes of keys: every route needs one, and a key without it is refused before anything is done.

The calls are those of the table of ``routes``, in which every route stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from app.api.auth.access import access_of, scopes_of_view
from app.tenants.changes import create_tenant, issue_key
from app.tenants.scopes import OPERATOR_SCOPES, TENANT_SCOPES, Scope
from loadtest.attack.corpus.routes import CONSOLE, OPERATOR, PUBLIC, TENANT_PAGE, Call
from tests.integration.api.test_isolation import EACH, GUARDED, HTML, Knocking, method_of, names
from tests.support.browsing import Browser, text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import opened

#: Keys by their kind (whether it is an operator's) and the scopes that they have.
Keys = Mapping[tuple[bool, frozenset[Scope]], str]

SETS = {
    True: [OPERATOR_SCOPES, *(OPERATOR_SCOPES - {scope} for scope in OPERATOR_SCOPES)],
    False: [TENANT_SCOPES, *(TENANT_SCOPES - {scope} for scope in TENANT_SCOPES)],
}
SINGLE = frozenset({Scope.READ}), frozenset({Scope.SCALE})


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Knocking]:
    with opened(api_database, tmp_path_factory.mktemp("blobs")) as app:
        yield Knocking(app)


@pytest.fixture(scope="module")
def keys(api_database: DatabaseFixture) -> Keys:
    create_tenant(api_database.engine, "outlander")
    found = {}
    for operator in (True, False):
        for scopes in [*SETS[operator], *(SINGLE if operator else ())]:
            tenant = None if operator else "outlander"
            found[operator, scopes] = issue_key(
                api_database.engine, tenant, scopes=[scope.value for scope in scopes]
            ).key
    return found


def needed_by(http_client: Knocking, route: str) -> frozenset[Scope]:
    for rule in http_client.app.url_map.iter_rules():
        if rule.rule == route.partition(" ")[2] and method_of(route) in (rule.methods or ()):
            return scopes_of_view(http_client.app.view_functions[rule.endpoint])
    raise AssertionError(route)


def is_operators(call: Call) -> bool:
    return call.access in (OPERATOR, CONSOLE)


def test_every_route_that_is_not_public_has_a_scope(http_client: Knocking) -> None:
    app = http_client.app
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        assert (access_of(view) is PUBLIC) is not bool(scopes_of_view(view)), rule
        changes = not (rule.methods or set()) <= {"GET", "HEAD", "OPTIONS"}
        assert not changes or not scopes_of_view(view) & {Scope.READ, Scope.SCALE}, rule


@pytest.mark.parametrize(("route", "call"), GUARDED, ids=names(GUARDED))
def test_a_key_without_the_scope_is_refused(
    http_client: Knocking, keys: Keys, api_database: DatabaseFixture, route: str, call: Call
) -> None:
    operator = is_operators(call)
    possible = OPERATOR_SCOPES if operator else TENANT_SCOPES
    needed = needed_by(http_client, route)
    lacking = possible - needed
    key = (
        keys.get((operator, lacking))
        or issue_key(
            api_database.engine, None if operator else "outlander", scopes=list(lacking)
        ).key
    )
    answer = http_client.knock(key, route, call)
    assert answer.status_code == 403, answer.text
    problem = answer.get_json()
    assert problem["code"] == "FORBIDDEN"
    assert "lacks the scope" in problem["detail"]
    for scope in needed:
        assert scope in problem["detail"]


@pytest.mark.parametrize(("route", "call"), GUARDED, ids=names(GUARDED))
def test_a_key_with_one_of_the_scopes_is_not(
    http_client: Knocking, api_database: DatabaseFixture, keys: Keys, route: str, call: Call
) -> None:
    tenant = None if is_operators(call) else "outlander"
    for scope in needed_by(http_client, route):
        key = issue_key(api_database.engine, tenant, scopes=[scope]).key
        answer = http_client.knock(key, route, call)
        assert answer.status_code == call.stranger, answer.text


READS = [(route, call) for route, call in EACH if method_of(route) == "GET" and is_operators(call)]
WRITES = [(route, call) for route, call in EACH if method_of(route) != "GET" and is_operators(call)]


@pytest.mark.parametrize(("route", "call"), READS, ids=names(READS))
def test_a_read_only_operator_sees_every_page(
    http_client: Knocking, keys: Keys, route: str, call: Call
) -> None:
    answer = http_client.knock(keys[True, SINGLE[0]], route, call)
    assert answer.status_code == call.stranger, answer.text


@pytest.mark.parametrize(("route", "call"), WRITES, ids=names(WRITES))
def test_a_read_only_operator_changes_nothing(
    http_client: Knocking, keys: Keys, route: str, call: Call
) -> None:
    assert http_client.knock(keys[True, SINGLE[0]], route, call).status_code == 403


def test_a_read_only_operator_is_shown_no_forms(http_client: Knocking, keys: Keys) -> None:
    pages = {
        scopes: http_client.app.test_client(use_cookies=False)
        .get("/console/tenants/outlander", headers={**HTML, "Authorization": f"Bearer {key}"})
        .text
        for (operator, scopes), key in keys.items()
        if operator and Scope.READ in scopes
    }
    for scopes, page in pages.items():
        assert ('class="read-only"' in page) is (Scope.OPERATE not in scopes)
        assert ("changes nothing" in text_of(page)) is (Scope.OPERATE not in scopes)


def test_a_key_that_scales_reads_the_scaling_and_nothing_else(
    http_client: Knocking, keys: Keys
) -> None:
    served = [
        route
        for route, call in EACH
        if is_operators(call)
        and http_client.knock(keys[True, SINGLE[1]], route, call).status_code != 403
    ]
    assert served == ["GET /operator/scaling"]


def test_a_stream_is_refused_without_the_scope_to_read(http_client: Knocking, keys: Keys) -> None:
    submitting = keys[False, frozenset({Scope.SUBMIT})]
    for path in ("/events", "/tenant/events?page=/tenant"):
        assert http_client.call(submitting, "GET", path).status_code == 403


def test_callers_without_a_key_may_do_what_a_tenant_may(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        client = Knocking(app)
        assert client.call(None, "POST", "/jobs", {"type": "echo"}).status_code == 202
        assert client.call(None, "GET", "/jobs").status_code == 200
        assert Browser(app).get("/tenant").status_code == 200


def test_pages_of_a_tenant_whose_key_only_submits_stay_closed(
    http_client: Knocking, keys: Keys
) -> None:
    header = {**HTML, "Authorization": f"Bearer {keys[False, frozenset({Scope.SUBMIT})]}"}
    calls = [one for one in EACH if one[1].access is TENANT_PAGE and method_of(one[0]) == "GET"]
    for route, call in calls:
        assert http_client.browse(header, route, call).status_code == 403
