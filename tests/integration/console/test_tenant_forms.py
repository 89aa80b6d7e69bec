"""Tenants created, terms changed, keys issued and revoked, and lists sorted in the browser."""

from __future__ import annotations

import html
import re

import pytest

from app.tenants.changes import create_tenant, issue_key
from app.tenants.listing import LIST_BY_AGE, LIST_BY_NAME, read_tenant
from app.tenants.tenant import PoolLimits, TenantProfile
from app.tenants.terms import Change
from tests.support.browsing import Browser, cells, text_of
from tests.support.database_fixture import DatabaseFixture

LIST = "/console/tenants"


def fresh(database: DatabaseFixture, name: str, change: Change | None = None) -> str:
    """A tenant of the test's own; its page."""
    database.execute("DELETE FROM tenants WHERE name = %s", name)
    create_tenant(database.engine, name, change)
    return f"{LIST}/{name}"


def terms(database: DatabaseFixture, name: str) -> TenantProfile:
    with database.engine.connect() as connection:
        found = read_tenant(connection, name)
    assert found is not None
    return found.tenant


def typed(page: str) -> dict[str, str]:
    """What the form of the terms shows."""
    form = page.split('value="terms">', 1)[1].split("</form>", 1)[0]
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form))
    chosen = re.findall(r'<select [^>]*name="(\w+)">.*?<option selected>(\w+)', form)
    return {name: html.unescape(value) for name, value in fields.items()} | dict(chosen)


def test_a_tenant_is_created(operator: Browser, database: DatabaseFixture) -> None:
    database.execute("DELETE FROM tenants WHERE name = 'new-one'")
    said = operator.do(LIST, name="new-one", tier="pro")
    assert said.startswith("new-one was created.")
    assert terms(database, "new-one").tier == "pro"
    for form, wrong in (
        ({"name": "new-one", "tier": "pro"}, "There is a tenant 'new-one' already."),
        ({"name": "<b>", "tier": "pro"}, "name must be 1 to 63"),
        ({"name": "fine", "tier": "gold"}, "tier"),
        ({}, "tier"),
    ):
        answer = operator.post(LIST, form)
        assert answer.status_code in (409, 422)
        assert wrong in text_of(answer.text) and "<b>" not in answer.text


def test_who_saves_changes_only_what_it_changed(
    operator: Browser, database: DatabaseFixture
) -> None:
    page = fresh(database, "two-tabs")
    form = typed(operator.page(page)) | {"act": "terms"}
    operator.do(page, **form | {"submit_per_second": "5"})
    operator.do(page, **form | {"weight": "3"})
    after = terms(database, "two-tabs")
    assert (after.submit_per_second, after.weight) == (5, 3)
    operator.do(page, **form)
    assert terms(database, "two-tabs") == after


def test_terms_are_changed_and_cleared(operator: Browser, database: DatabaseFixture) -> None:
    page = fresh(database, "agreed", Change({"weight": 2.5}, {"medium": {"in_flight": 5}}))
    form = typed(operator.page(page))
    assert (form["weight"], form["limits.medium.in_flight"], form["tier"]) == (
        "2.5",
        "5",
        "standard",
    )
    changed = form | {
        "act": "terms",
        "tier": "enterprise",
        "tier_limits": "none",
        "weight": "",
        "submit_per_second": "12.5",
        "types": "echo, score_application",
        "limits.medium.reserved": "2",
        "limits.long.depth": "100000000",
    }
    assert operator.do(page, **changed) == "The terms of agreed were changed."
    after = terms(database, "agreed")
    assert (after.tier, after.weight, after.submit_per_second) == ("enterprise", None, 12.5)
    assert not after.tier_limits
    assert after.types == ("echo", "score_application")
    assert after.limits == {"medium": PoolLimits(5, 2), "long": PoolLimits(depth=100_000_000)}
    now = typed(operator.page(page))
    assert {name: changed[name] for name in now if name != "was"} == {
        name: value for name, value in now.items() if name != "was"
    }
    assert operator.do(page, act="terms", tier="enterprise") == "The terms of agreed were changed."
    assert terms(database, "agreed") == after, "fields that are not sent stay"


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("weight", "0", "weight must be from 0.001"),
        ("weight", "heavy", "weight"),
        ("weight", "nan", "weight"),
        ("weight", "1e400", "weight"),
        ("submit_per_second", "-1", "submit_per_second must be from"),
        ("limits.medium.in_flight", "1.5", "limits.medium.in_flight"),
        ("limits.medium.in_flight", "9" * 20, "limits.medium.in_flight must be from"),
        ("limits.medium.in_flight", "9" * 30_000, "limits.medium.in_flight"),
        ("limits.medium.reserved", "3", "limits.medium.reserved is for the tier enterprise only"),
        ("types", "echo, no type", "types 'no type' is not a name of a job type"),
        ("tier", "gold", "tier"),
        ("tier_limits", "maybe", "tier_limits"),
    ],
)
def test_terms_that_are_wrong_change_nothing(
    operator: Browser, database: DatabaseFixture, field: str, value: str, wrong: str
) -> None:
    page = fresh(database, "agreed", Change({"weight": 2.5}, {}))
    before = terms(database, "agreed")
    form = typed(operator.page(page)) | {field: value}
    answer = operator.post(page, form)
    assert answer.status_code == 422, answer.text
    assert wrong in text_of(answer.text)
    assert terms(database, "agreed") == before
    if not field.startswith("tier"):
        assert typed(answer.text)[field] == value, "what was typed is still there"


def test_a_key_is_shown_once_and_revoked_by_its_page(
    operator: Browser, database: DatabaseFixture
) -> None:
    page = fresh(database, "keyed")
    assert "This tenant has no API keys." in operator.text(page)
    answer = operator.post(page, {"act": "key", "label": "<i>ci</i>"})
    assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
    (key,) = set(re.findall(r"fair_[a-z0-9]{8}_[A-Za-z0-9]{32}", answer.text))
    assert "<i>" not in answer.text and "Set-Cookie" not in answer.headers
    services = operator.app.extensions["fairline"]
    assert services.visitors.of_key(key).tenant.name == "keyed"
    again = operator.page(page)
    assert key not in again and "<i>ci</i>" in html.unescape(again)
    key_id = key.split("_")[1]
    said = operator.do(f"{page}/keys/{key_id}/revoke")
    assert said == f"The key fair_{key_id}_… is revoked."
    assert database.query("SELECT revoked_at FROM api_keys WHERE id = %s", key_id)[0].revoked_at
    assert f"{key_id}/revoke" not in operator.page(page)


def test_a_page_revokes_its_own_tenants_keys_alone(
    operator: Browser, database: DatabaseFixture
) -> None:
    page = fresh(database, "keyed")
    others = [issue_key(database.engine, None), issue_key(database.engine, "demo")]
    for key_id in (*(key.id for key in others), "nonsense", "abcd1234"):
        assert operator.post(f"{page}/keys/{key_id}/revoke", {}).status_code == 404
    assert not database.query("SELECT 1 FROM api_keys WHERE revoked_at IS NOT NULL")
    for label in ("x" * 201, "a\0b"):
        assert operator.post(page, {"act": "key", "label": label}).status_code == 422
    assert operator.post(f"{LIST}/nobody", {"act": "key"}).status_code == 404


def test_nobody_else_changes_terms_or_keys(operator: Browser, database: DatabaseFixture) -> None:
    page = fresh(database, "keyed")
    key = issue_key(database.engine, "keyed")
    before = terms(database, "keyed")
    calls = [(LIST, {"name": "x"}), (page, {"tier": "pro"}), (page, {"act": "key"})]
    for path, form in (*calls, (f"{page}/keys/{key.id}/revoke", {})):
        tenant = Browser(operator.app, key.key)
        assert tenant.post(path, form).headers["Location"].startswith("/console/sign-in")
        assert operator.post(path, form, {"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert terms(database, "keyed") == before
    assert len(database.query("SELECT 1 FROM api_keys WHERE tenant_id IS NOT NULL")) == 1


def names(page: str) -> list[str]:
    table = page.split('aria-label="All tenants"', 1)[1].split("</table>", 1)[0]
    return re.findall(r'<th scope="row"><a href="/console/tenants/([^"]+)"', table)


def test_all_tenants_are_sorted_by_name_and_age_page_by_page(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute("DELETE FROM tenants WHERE name LIKE 'sorted-%%'")
    for n in range(120):
        database.execute("INSERT INTO tenants (name) VALUES (%s)", f"sorted-{n * 37 % 120:03}")
    rows = database.query("SELECT name FROM tenants WHERE name LIKE 'sorted-%%' ORDER BY id")
    by_age = [row.name for row in rows]
    for order, expected in (
        ("name", sorted(by_age)),
        ("-name", sorted(by_age, reverse=True)),
        ("created", by_age),
        ("-created", by_age[::-1]),
    ):
        found: list[str] = []
        following = f"{LIST}?search=sorted-&order={order}"
        while following:
            page = operator.page(following)
            found += names(page)
            link = re.search(r'rel="next" href="([^"#]*)', page)
            following = html.unescape(link[1]) if link else ""
        assert found == expected, order
    for after in ("x y", "%00", "-1", "9" * 30):
        assert operator.get(f"{LIST}?order=created&after={after}").status_code == 422
    for statement in (LIST_BY_NAME, LIST_BY_AGE):
        assert "OFFSET" not in statement
    database.execute("DELETE FROM tenants WHERE name LIKE 'sorted-%%'")


def test_active_tenants_are_sorted_by_any_column(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.submit(tenant_id=1)
    for _ in range(3):
        database.submit(tenant_id=2)

    def order(query: str) -> list[str]:
        table = operator.page(LIST + query).split('aria-label="Active tenants"', 1)[1]
        found = re.findall(r'<th scope="row"><a href="[^"]+">(\w+)<', table.split("</table>")[0])
        return [name for name in found if name in ("demo", "other")]

    assert order("?sort=-waiting") == ["other", "demo"]
    assert order("?sort=waiting") == ["demo", "other"]
    assert order("?sort=tenant") == ["demo", "other"]
    assert order("?sort=-tenant&pool=medium") == ["other", "demo"]
    assert 'aria-sort="descending"' in operator.page(LIST)
    link = re.search(
        r'class="sort" href="([^"]*sort=-waiting[^"]*)"', operator.page(f"{LIST}?pool=medium")
    )
    assert link and "pool=medium" in link[1]


def test_a_key_is_issued_with_the_ticked_scopes_and_an_expiry(
    operator: Browser, database: DatabaseFixture
) -> None:
    fresh(database, "scoped")
    form = {"act": "key", "label": "brief", "scopes": "read", "expires_days": "30"}
    assert operator.post("/console/tenants/scoped", form).status_code == 201
    [row] = database.query(
        "SELECT key.id, scopes, extract(day FROM expires_at - now()) AS days"
        " FROM api_keys AS key JOIN tenants ON tenants.id = tenant_id WHERE tenants.name = 'scoped'"
    )
    assert row.scopes == ["read"] and row.days in (29, 30)
    shown = cells(operator.page("/console/tenants/scoped"), f"fair_{row.id}_…")
    assert shown[2] == "read" and shown[4] == "–" and shown[5].startswith("active until")
    database.execute("UPDATE api_keys SET expires_at = now() WHERE id = %s", row.id)
    shown = cells(operator.page("/console/tenants/scoped"), f"fair_{row.id}_…")
    assert shown[5].startswith("expired")


@pytest.mark.parametrize(
    "wrong", [{"scopes": "operate"}, {"expires_days": "-1"}, {"expires_days": "soon"}]
)
def test_a_key_with_wrong_scopes_or_days_is_not_issued(
    operator: Browser, database: DatabaseFixture, wrong: dict[str, str]
) -> None:
    before = database.query("SELECT count(*) FROM api_keys")
    assert operator.post("/console/tenants/demo", {"act": "key", **wrong}).status_code == 422
    assert database.query("SELECT count(*) FROM api_keys") == before
