"""``/operator`` and ``GET /tenant``: tenants, their terms and their keys over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.tenants.changes import issue_key
from models.store.clock import DATABASE_CLOCK
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient

TERMS = {
    "tier": "enterprise",
    "tier_limits": False,
    "weight": 500.0,
    "submit_per_second": 20.0,
    "submit_burst": 100.0,
    "requests_per_second": 50.0,
    "idempotency_keys": 5000,
    "blob_bytes": 10**9,
    "types": ["echo", "score_application"],
    "limits": {"medium": {"in_flight": 20, "reserved": 2, "depth": 1000}},
}
NO_TERMS = {
    "tier_limits": True,
    "weight": None,
    "submit_per_second": None,
    "submit_burst": None,
    "requests_per_second": None,
    "idempotency_keys": None,
    "blob_bytes": None,
    "types": None,
    "limits": {},
    "suspended": False,
    "deleting": False,
}


class Operator:
    """A client with an operator's key."""

    def __init__(self, http_client: HttpClient, database: DatabaseFixture) -> None:
        self.http_client = http_client
        self._key = issue_key(database.engine, None).key

    def call(self, method: str, path: str, body: Any = None) -> TestResponse:
        return self.http_client.call(self._key, method, f"/operator{path}", body)

    def do(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.call(method, path, body)
        assert answer.status_code == status, answer.text
        return answer.json

    def refused(self, method: str, path: str, body: Any, status: int, code: str) -> list[str]:
        """The invalid fields."""
        document = self.do(method, path, body, status)
        assert document["code"] == code
        return [error["field"] for error in document.get("errors", [])]


@pytest.fixture
def operator(http_client: HttpClient, api_database: DatabaseFixture) -> Operator:
    api_database.execute("DELETE FROM api_keys; DELETE FROM tenant_limits")
    api_database.execute("DELETE FROM tenants WHERE name NOT IN ('demo', 'other')")
    return Operator(http_client, api_database)


def test_a_tenant_is_created_and_read(operator: Operator) -> None:
    answer = operator.call("POST", "/tenants", {"name": "acme", **TERMS})
    assert (answer.status_code, answer.headers["Location"]) == (201, "/operator/tenants/acme")
    made = answer.json
    assert made is not None
    assert made.pop("created_at").endswith("Z")
    assert made == {"name": "acme", **TERMS, "suspended": False, "deleting": False}
    assert operator.do("GET", "/tenants/acme").items() >= made.items()
    plain = operator.do("POST", "/tenants", {"name": "plain"}, 201)
    assert plain.items() >= {"name": "plain", "tier": "standard", **NO_TERMS}.items()


def test_a_name_is_taken_once(operator: Operator) -> None:
    operator.do("POST", "/tenants", {"name": "acme"}, 201)
    operator.refused("POST", "/tenants", {"name": "acme", "tier": "pro"}, 409, "CONFLICT")
    assert operator.do("GET", "/tenants/acme")["tier"] == "standard"


def test_a_patch_changes_what_it_names_and_null_clears(operator: Operator) -> None:
    operator.do("POST", "/tenants", {"name": "acme", **TERMS}, 201)
    changed = operator.do(
        "PATCH",
        "/tenants/acme",
        {"weight": None, "limits": {"medium": {"depth": None}, "long": {"in_flight": 1}}},
    )
    assert changed["weight"] is None and changed["submit_burst"] == 100
    assert changed["limits"] == {
        "long": {"in_flight": 1, "reserved": None, "depth": None},
        "medium": {"in_flight": 20, "reserved": 2, "depth": None},
    }
    cleared = operator.do("PATCH", "/tenants/acme", {"limits": {"medium": None, "long": None}})
    assert cleared["limits"] == {} == operator.do("GET", "/tenants/acme")["limits"]
    assert operator.do("PATCH", "/tenants/acme", {}) == cleared
    operator.do("PATCH", "/tenants/acme", TERMS)
    cleared = operator.do("PATCH", "/tenants/acme", {"limits": None})
    assert cleared["limits"] == {} and cleared["weight"] == 500.0


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"tier": "gold"}, ["tier"]),
        ({"tier": None}, ["tier"]),
        ({"weight": 0}, ["weight"]),
        ({"weight": "5"}, ["weight"]),
        ({"submit_burst": 0.5}, ["submit_burst"]),
        ({"colour": "blue"}, ["colour"]),
        ({"limits": {"gpu": {"depth": 1}}}, ["limits.gpu"]),
        ({"limits": {"medium": {"reserved": 1}}}, ["limits.medium.reserved"]),
        ({"limits": {"medium": {"depth": -1}}}, ["limits.medium.depth"]),
        ({"limits": {"medium": {"depth": 10**30}}}, ["limits.medium.depth"]),
        ({"limits": {"medium": {"in_flight": 1.5}}}, ["limits.medium.in_flight"]),
    ],
)
def test_terms_that_cannot_be_are_refused_by_field(
    operator: Operator, body: dict[str, Any], fields: list[str]
) -> None:
    before = operator.do("GET", "/tenants/demo")
    refused = operator.refused("PATCH", "/tenants/demo", body, 422, "VALIDATION_FAILED")
    assert refused == fields
    assert operator.do("GET", "/tenants/demo") == before


@pytest.mark.parametrize("name", ["Acme", "a.b", "", "a" * 64, "a/b"])
def test_what_is_no_name_is_refused(operator: Operator, name: str) -> None:
    fields = operator.refused("POST", "/tenants", {"name": name}, 422, "VALIDATION_FAILED")
    assert fields == ["name"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/tenants/nobody", None),
        ("GET", "/tenants/No%00body", None),
        ("PATCH", "/tenants/nobody", {}),
        ("GET", "/tenants/nobody/keys", None),
        ("POST", "/tenants/nobody/keys", {}),
        ("DELETE", "/keys/abcd1234", None),
        ("DELETE", "/keys/%00", None),
    ],
)
def test_what_is_not_there_is_not_found(
    operator: Operator, method: str, path: str, body: Any
) -> None:
    operator.refused(method, path, body, 404, "NOT_FOUND")


def test_tenants_are_listed_by_name_page_by_page(operator: Operator) -> None:
    for name in ("b", "a", "c"):
        operator.do("POST", "/tenants", {"name": name}, 201)
    names, path = [], "/tenants?limit=2"
    while path:
        answer = operator.call("GET", path)
        assert answer.json is not None
        names += [tenant["name"] for tenant in answer.json["tenants"]]
        link = answer.headers.get("Link", "")
        path = link.partition(">")[0].removeprefix("</operator")
    assert names == ["a", "b", "c", "demo", "other"]
    assert operator.refused("GET", "/tenants?cursor=!", None, 422, "VALIDATION_FAILED")


def test_a_key_is_shown_once_works_at_once_and_not_after_it_was_revoked(
    operator: Operator,
) -> None:
    answer = operator.call("POST", "/tenants/demo/keys", {"name": "laptop"})
    assert answer.status_code == 201 and answer.headers["Cache-Control"] == "no-store"
    assert answer.json is not None
    key, short = answer.json["key"], answer.json["id"]
    own = operator.http_client.call(key, "GET", "/tenant")
    terms = {"name": "demo", "tier": "standard", **NO_TERMS, "tier_limits": False}
    assert own.json is not None and own.json.items() >= terms.items()
    (listed,) = operator.do("GET", "/tenants/demo/keys")["keys"]
    assert (listed["id"], listed["name"], listed["revoked_at"]) == (short, "laptop", None)
    assert listed["scopes"] == ["submit", "read"]
    assert set(listed) == {
        *("id", "tenant", "name", "scopes", "created_at"),
        *("expires_at", "last_used_at", "revoked_at"),
    }
    revoked = operator.do("DELETE", f"/keys/{short}")
    assert operator.do("DELETE", f"/keys/{short}") == revoked
    operator.http_client.services.tenants.directory.refresh()
    assert operator.http_client.call(key, "GET", "/tenant").status_code == 401
    (listed,) = operator.do("GET", "/tenants/demo/keys")["keys"]
    assert listed["revoked_at"] == revoked["revoked_at"]
    assert operator.do("POST", "/tenants/demo/keys", status=201)["name"] == ""


def test_a_tenant_reads_its_own_terms_as_they_are_now(
    operator: Operator, api_database: DatabaseFixture
) -> None:
    operator.do("POST", "/tenants", {"name": "acme"}, 201)
    key = issue_key(api_database.engine, "acme").key
    assert operator.http_client.call(key, "GET", "/tenant").status_code == 200
    operator.do("PATCH", "/tenants/acme", TERMS)
    operator.http_client.services.tenants.directory.refresh()
    own = operator.http_client.call(key, "GET", "/tenant").json
    assert own is not None and own.items() >= {"name": "acme", **TERMS}.items()
    assert own["effective"] == {
        "weight": 500.0,
        "submit_per_second": 20.0,
        "submit_burst": 100.0,
        "requests_per_second": 50.0,
        "idempotency_keys": 5000,
        "blob_bytes": 10**9,
        "depth": {"short": 10_000_000, "medium": 1000, "long": 10_000_000},
        "in_flight": {"medium": 20},
    }
    assert operator.do("GET", "/tenants/acme").items() >= own.items()
    plain = operator.do("GET", "/tenants/demo")["effective"]
    assert plain["weight"] == 10.0 and plain["submit_per_second"] is None


def test_an_operators_key_cannot_be_issued_over_the_wire(operator: Operator) -> None:
    fields = operator.refused(
        "POST", "/tenants/demo/keys", {"operator": True}, 422, "VALIDATION_FAILED"
    )
    assert fields == ["operator"]
    assert operator.do("POST", "/keys", {}, 404)["detail"] == "There is no such path."


def test_a_revoked_operator_is_out(operator: Operator, api_database: DatabaseFixture) -> None:
    other = issue_key(api_database.engine, None)
    assert operator.http_client.call(other.key, "GET", "/operator/tenants").status_code == 200
    operator.do("DELETE", f"/keys/{other.id}")
    operator.http_client.services.tenants.directory.refresh()
    assert operator.http_client.call(other.key, "GET", "/operator/tenants").status_code == 401


def test_suspended_tenant_submits_nothing_until_it_is_resumed(
    operator: Operator, api_database: DatabaseFixture
) -> None:
    client = operator.http_client
    operator.call("POST", "/tenants", {"name": "paused"})
    key = issue_key(api_database.engine, "paused").key
    submissions = (
        ("/jobs", {"type": "echo"}),
        ("/jobs/batch", {"jobs": [{"type": "echo"}]}),
        ("/applications", {"candidate": "Ada", "payload": {}}),
    )

    def submitted() -> set[int]:
        client.services.tenants.directory.refresh()
        return {client.call(key, "POST", path, body).status_code for path, body in submissions}

    assert submitted() == {202}
    answer = operator.call("POST", "/tenants/paused/suspend")
    assert (answer.status_code, answer.json["suspended"]) == (200, True)  # type: ignore[index]
    assert submitted() == {403}
    refused = client.call(key, "POST", "/jobs", {"type": "echo"})
    assert refused.mimetype == "application/problem+json"
    assert refused.json["code"] == "TENANT_SUSPENDED"  # type: ignore[index]
    mine = client.call(key, "GET", "/tenant").json
    assert mine["suspended"] is True  # type: ignore[index]
    assert mine["effective"]["in_flight"]["medium"] == 0  # type: ignore[index]
    assert client.call(key, "GET", "/jobs").status_code == 200, "it may still read"
    assert operator.call("POST", "/tenants/paused/resume").json["suspended"] is False  # type: ignore[index]
    assert submitted() == {202}


def test_deleted_tenant_is_locked_out_at_once(
    operator: Operator, api_database: DatabaseFixture
) -> None:
    client = operator.http_client
    operator.call("POST", "/tenants", {"name": "leaving"})
    key = issue_key(api_database.engine, "leaving").key
    assert client.call(key, "GET", "/tenant").status_code == 200
    answer = operator.call("DELETE", "/tenants/leaving")
    assert answer.status_code == 202
    assert answer.json["suspended"] and answer.json["deleting"]  # type: ignore[index]
    client.services.tenants.directory.refresh()
    assert client.call(key, "GET", "/tenant").status_code == 401
    assert operator.call("POST", "/tenants/leaving/resume").status_code == 409
    assert operator.call("DELETE", "/tenants/leaving").status_code == 202, "once more"


def test_a_key_is_issued_with_scopes_and_an_expiry(operator: Operator) -> None:
    body = {"scopes": ["read"], "expires_at": "2999-01-31T12:00:00Z"}
    issued = operator.call("POST", "/tenants/demo/keys", body).get_json()
    assert (issued["scopes"], issued["expires_at"]) == (["read"], "2999-01-31T12:00:00.000Z")
    listed = {key["id"]: key for key in operator.do("GET", "/tenants/demo/keys")["keys"]}
    assert listed[issued["id"]] == {name: issued[name] for name in issued if name != "key"}
    call = operator.http_client.call
    assert call(issued["key"], "GET", "/jobs").status_code == 200
    assert call(issued["key"], "POST", "/jobs", {"type": "echo"}).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": []},
        {"scopes": ["operate"]},
        {"scopes": ["everything"]},
        {"scopes": "read"},
        {"expires_at": "2001-01-31T12:00:00Z"},
        {"expires_at": "2999-01-31"},
        {"expires_at": 90},
    ],
)
def test_a_key_with_other_scopes_or_an_expiry_in_the_past_is_refused(
    operator: Operator, body: dict[str, object]
) -> None:
    answer = operator.call("POST", "/tenants/demo/keys", body)
    assert answer.status_code == 422, answer.text
    assert answer.get_json()["errors"][0]["field"].startswith(next(iter(body)))


def test_an_expired_key_is_told_so(operator: Operator, api_database: DatabaseFixture) -> None:
    soon = DATABASE_CLOCK.now() + timedelta(days=1)
    issued = issue_key(api_database.engine, "demo", expires_at=soon)
    api_database.execute(
        "UPDATE api_keys SET expires_at = '2026-01-31 12:00:00Z' WHERE id = %s", issued.id
    )
    answer = operator.http_client.call(issued.key, "GET", "/jobs")
    assert answer.status_code == 401
    assert answer.get_json()["detail"] == "This API key expired at 2026-01-31 12:00:00Z."
