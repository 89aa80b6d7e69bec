"""The form of a tenant's terms: what it shows, and the request that it stands for.

An empty field is no agreement: the tier's or the deployment's default applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import orjson

from app.api.http.body import JsonDocument, validate_body
from app.api.schemas.requests import NewTenant, TenantTerms
from app.console.forms import Form, reasons
from app.errors import FairlineError
from app.tenants.tenant import TIERS, TenantProfile
from app.tenants.terms import BOUNDS, LIMIT_BOUNDS
from models.pools import POOLS

#: Whether the limits of the tier hold, as the form has it.
TIER_LIMITS = {"apply": True, "none": False}
#: Longer numbers are refused as the texts they are.
MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TermsForm(Form):
    """The form of a tenant's terms; fields of a pool are ``limits.<pool>.<name>``."""

    tiers: tuple[str, ...] = TIERS
    tier_limits: tuple[str, ...] = tuple(TIER_LIMITS)


def terms_form(tenant: TenantProfile) -> TermsForm:
    """The terms as they are."""
    typed = {"tier": tenant.tier, "tier_limits": "apply" if tenant.tier_limits else "none"}
    typed |= {name: shown(getattr(tenant, name)) for name in BOUNDS}
    typed["types"] = ", ".join(tenant.types or ())
    for pool in pools_of(tenant):
        of = tenant.limits_of(pool)
        typed |= {f"limits.{pool}.{name}": shown(getattr(of, name)) for name in LIMIT_BOUNDS}
    return TermsForm(typed)


def pools_of(tenant: TenantProfile) -> list[str]:
    """Pools whose limits can be changed: those there are, and those with limits."""
    return [*POOLS, *(pool for pool in tenant.limits if pool not in POOLS)]


def refused_terms(typed: Mapping[str, str], error: FairlineError) -> TermsForm:
    """The form again, with what was typed and why it is refused."""
    return TermsForm(typed, *reasons(error, nested=True))


def parse_terms(typed: Mapping[str, str], tenant: TenantProfile) -> TenantTerms:
    """What was typed as ``PATCH /operator/tenants/{name}`` takes it; fields not sent stay."""
    document: dict[str, Any] = {name: number(typed[name]) for name in BOUNDS if name in typed}
    if "tier" in typed:
        document["tier"] = typed["tier"]
    if (text := typed.get("tier_limits")) is not None:
        document["tier_limits"] = TIER_LIMITS.get(text, text)
    if (text := typed.get("types")) is not None:
        document["types"] = [name.strip() for name in text.split(",") if name.strip()] or None
    limits: dict[str, dict[str, Any]] = {}
    for pool in pools_of(tenant):
        for name in LIMIT_BOUNDS:
            if (text := typed.get(f"limits.{pool}.{name}")) is not None:
                limits.setdefault(pool, {})[name] = number(text)
    if limits:
        document["limits"] = limits
    return validate_body(document_of(document), TenantTerms)


def parse_tenant(typed: Mapping[str, str]) -> NewTenant:
    """A new tenant as ``POST /operator/tenants`` takes it."""
    document = {"name": typed.get("name", "").strip(), "tier": typed.get("tier", "")}
    return validate_body(document_of(document), NewTenant)


def document_of(document: Mapping[str, Any]) -> JsonDocument:
    return JsonDocument(orjson.dumps(document), document)


def number(text: str) -> float | str | None:
    """None for an empty field; what is no number stays a text, which the schema refuses."""
    text = text.strip()
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS:
        return min(int(text), 2**53)
    try:
        value = float(text) if text.isascii() and len(text) <= MOST_DIGITS else nan
    except ValueError:
        return text
    return value if isfinite(value) else text


def shown(value: float | None) -> str:
    """A number as it is typed."""
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.12g}"
