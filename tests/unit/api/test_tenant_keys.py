"""Keys, names, terms and access: the pure part of access control."""

from __future__ import annotations

import hashlib
import hmac
import string
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from app.api.auth.access import (
    Access,
    UndeclaredAccess,
    access_of,
    guard,
    open_to,
    scopes_of_view,
)
from app.errors import NotFound, ValidationFailed
from app.tenants.keys import new_key, parse_authorization, presented, same_digest
from app.tenants.ownership import own
from app.tenants.scopes import Scope
from app.tenants.tenant import NO_LIMITS, PoolLimits, TenantProfile, is_tenant_name
from app.tenants.terms import LIMIT_BOUNDS, Change, changed

KEY = "fair_abcd1234_" + "a" * 32
POOLS = ("short", "medium", "long")
ACME = TenantProfile(7, "acme", "enterprise")


def wrong_fields(tenant: TenantProfile, change: Change) -> set[str]:
    with pytest.raises(ValidationFailed) as refused:
        changed(tenant, change, POOLS)
    return {error.field for error in refused.value.errors}


def test_a_new_key_is_found_by_its_short_part_and_known_by_its_digest() -> None:
    key = new_key()
    sent = presented(key)
    assert sent is not None
    assert key.split("_")[:2] == ["fair", sent.id]
    assert sent.digest == hashlib.sha256(key.encode()).digest()


def test_no_two_keys_are_alike() -> None:
    keys = {new_key() for _ in range(500)}
    assert len({key.split("_")[2] for key in keys}) == 500


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_the_name_of_the_scheme_is_not_case_sensitive(scheme: str) -> None:
    assert parse_authorization(f"{scheme} {KEY}") == presented(KEY)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        KEY,
        f"Basic {KEY}",
        f"Bearer{KEY}",
        f"Bearer {KEY}a",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY},Bearer {KEY}",
        f" Bearer {KEY}",
        f"Bearer {KEY} ",
        f"Bearer {KEY}\n",
        f"Bearer {KEY.upper()}",
        f"Bearer {KEY.replace('fair', 'fare')}",
        "Bearer fair_abcd123é_" + "a" * 32,
        "Bearer fair_abcd1234_" + "٣" * 32,
    ],
)
def test_what_is_not_quite_a_key_is_none(header: str) -> None:
    assert parse_authorization(header) is None


@given(st.text(alphabet=string.printable, max_size=80))
def test_no_header_makes_the_parser_stumble(header: str) -> None:
    found = parse_authorization(header)
    assert found is None or header.lower().startswith("bearer ")


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert same_digest(b"one", b"one") and not same_digest(b"one", b"two")
    assert compared == [(b"one", b"one"), (b"one", b"two")]


@pytest.mark.parametrize("name", ["a", "0", "acme", "acme-eu_2", "a" * 63])
def test_tenants_may_be_called_so(name: str) -> None:
    assert is_tenant_name(name)


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "Acme", "a.b", "a/b", "a b", "é", "a" * 64, "a\n"]
)
def test_tenants_may_not_be_called_so(name: str) -> None:
    assert not is_tenant_name(name)


def test_what_a_change_does_not_name_stays() -> None:
    before = replace(ACME, weight=5.0, limits={"medium": PoolLimits(in_flight=20, reserved=2)})
    after = changed(before, Change({}, {"medium": {"in_flight": 30}}), POOLS)
    assert after == replace(before, limits={"medium": PoolLimits(in_flight=30, reserved=2)})


def test_none_clears_and_a_pool_without_limits_is_left_out() -> None:
    before = replace(ACME, weight=5.0, limits={"medium": PoolLimits(in_flight=20)})
    after = changed(before, Change({"weight": None}, {"medium": {"in_flight": None}}), POOLS)
    assert after == ACME


@pytest.mark.parametrize("tier", ["free", "standard", "pro"])
def test_reserved_slots_are_for_enterprise_only(tier: str) -> None:
    reserve = Change({}, {"medium": {"reserved": 2}})
    assert wrong_fields(replace(ACME, tier=tier), reserve) == {"limits.medium.reserved"}
    reserved = changed(ACME, reserve, POOLS)
    assert wrong_fields(reserved, Change({"tier": tier})) == {"limits.medium.reserved"}


def test_more_slots_cannot_be_reserved_than_may_be_used() -> None:
    change = Change({}, {"medium": {"reserved": 3, "in_flight": 2}})
    assert wrong_fields(ACME, change) == {"limits.medium.reserved"}


def test_a_free_account_has_no_weight_of_its_own() -> None:
    assert wrong_fields(TenantProfile(1, "a"), Change({"tier": "free", "weight": 2.0})) == {
        "weight"
    }


def test_a_pool_that_does_not_exist_gets_no_limits_but_may_lose_them() -> None:
    assert wrong_fields(ACME, Change({}, {"gpu": {"depth": 1}})) == {"limits.gpu"}
    orphan = replace(ACME, limits={"gpu": PoolLimits(depth=1)})
    assert changed(orphan, Change({"tier": "pro"}), POOLS).limits_of("gpu").depth == 1
    assert changed(orphan, Change({}, {"gpu": {"depth": None}}), POOLS) == ACME


@given(
    st.dictionaries(
        st.sampled_from(POOLS),
        st.dictionaries(st.sampled_from(sorted(LIMIT_BOUNDS)), st.none() | st.integers()),
    ),
    st.sampled_from(["weight", "submit_per_second", "submit_burst"]),
    st.floats(allow_nan=True) | st.none(),
)
def test_terms_that_are_taken_fit_the_table(
    limits: dict[str, Any], field: str, amount: float | None
) -> None:
    try:
        after = changed(ACME, Change({field: amount}, limits), POOLS)
    except ValidationFailed:
        return
    assert NO_LIMITS not in after.limits.values()
    value = getattr(after, field)
    assert value is None or 0 < value <= 10_000_000
    for of in after.limits.values():
        assert of.in_flight is None or 1 <= of.in_flight < 2**31
        assert of.reserved is None or 1 <= of.reserved < 2**31
        assert of.depth is None or 0 <= of.depth < 2**63


def test_a_row_is_given_to_its_tenant_only() -> None:
    class Row:
        tenant_id = 7

    row = Row()
    assert own(row, 7) is row
    for found, tenant_id in ((row, 8), (None, 7)):
        with pytest.raises(NotFound):
            own(found, tenant_id)


def test_an_application_with_an_undeclared_route_is_not_built() -> None:
    app = Flask("app", static_folder=None)
    app.get("/told")(open_to(Access.PUBLIC)(lambda: "told"))
    guard(app)
    app = Flask("app", static_folder=None)
    app.add_url_rule("/secret", "secrets.get", lambda: "secret")
    with pytest.raises(UndeclaredAccess, match=r"secrets\.get"):
        guard(app)


def test_a_declaration_leaves_the_view_as_it_is() -> None:
    def view() -> None: ...

    assert access_of(view) is None
    assert open_to(Access.OPERATOR, Scope.READ, Scope.SCALE)(view) is view
    assert access_of(view) is Access.OPERATOR
    assert scopes_of_view(view) == {Scope.READ, Scope.SCALE}


@pytest.mark.parametrize("access", [one for one in Access if one is not Access.PUBLIC])
def test_an_application_with_a_route_without_a_scope_is_not_built(access: Access) -> None:
    app = Flask("app", static_folder=None)
    app.add_url_rule("/secret", "secrets.get", open_to(access)(lambda: "secret"))
    with pytest.raises(UndeclaredAccess, match="with which scope"):
        guard(app)
