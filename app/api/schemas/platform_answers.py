"""Schemas of answers about tenants, usage and the platform."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.answers import model
from app.policy.fairshare import Tier
from app.tenants.scopes import Scope
from models.audit import Act


class LimitsInPool(BaseModel):
    """A tenant's limits in a pool; null is the default."""

    in_flight: int | None
    reserved: int | None
    depth: int | None


class EffectiveTerms(BaseModel):
    """Terms with the defaults of the tier and the deployment applied."""

    weight: float
    submit_per_second: float | None
    submit_burst: float | None
    requests_per_second: float | None = Field(
        description="Other requests, to each API process; null: no limit."
    )
    idempotency_keys: int | None = Field(description="Kept at most; null: no limit.")
    blob_bytes: int | None = Field(description="In the blob store at most; null: no limit.")
    depth: dict[str, int] = Field(description="By pool.")
    in_flight: dict[str, int] = Field(description="By pool; pools without a cap are absent.")


class Waiting(BaseModel):
    """A tenant's waiting jobs in a pool."""

    scheduled: int
    queued: int


class Terms(BaseModel):
    """A tenant's terms; null is the default."""

    name: str
    tier: Tier
    tier_limits: bool = Field(description="Whether the tier's limits hold in place of null.")
    weight: float | None
    submit_per_second: float | None
    submit_burst: float | None
    requests_per_second: float | None
    idempotency_keys: int | None
    blob_bytes: int | None
    types: list[str] | None = Field(description="Job types that it may submit; null: all.")
    limits: dict[str, LimitsInPool] = Field(description="By pool.")
    suspended: bool = Field(description="It may submit nothing, and its queued jobs wait.")
    deleting: bool = Field(description="Everything of it is being removed.")


class Standing(BaseModel):
    """The effective terms, and what is waiting and was rejected under them."""

    effective: EffectiveTerms
    waiting: dict[str, Waiting] = Field(description="By pool.")
    refusals: dict[str, dict[str, int]] = Field(description="By day and code, for seven days.")


class Tenant(Terms, Standing):
    """A tenant as it sees itself."""


class TenantEntry(Terms):
    """A tenant as operators see it."""

    created_at: datetime


class TenantInFull(TenantEntry, Standing):
    """A tenant in detail."""


class Key(BaseModel):
    """A key without its secret."""

    id: str
    tenant: str | None = Field(description="Null for an operator's key.")
    name: str
    scopes: list[Scope] = Field(description="What it may do.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class IssuedKey(Key):
    """A new key with its secret, which is shown only once."""

    key: str


class Usage(BaseModel):
    """Usage and its cost."""

    jobs: int
    runs: int
    slot_seconds: float
    tokens_in: int
    tokens_out: int
    cost: str = Field(description="A decimal number.")


class UsageOfDay(Usage):
    """Usage of one day and pool."""

    day: date
    pool: str


class Prices(BaseModel):
    """Unit prices, as decimal numbers."""

    per_slot_second: str
    per_job: str
    per_million_tokens_in: str
    per_million_tokens_out: str


class UsageReport(BaseModel):
    """Usage by day and pool, priced."""

    tenant: str
    from_: date = Field(alias="from")
    to: date
    currency: str
    prices: Prices
    total: Usage
    days: list[UsageOfDay]


class PoolScaling(BaseModel):
    """How many workers a pool should have, and why."""

    desired: int
    current: int
    depth: int
    oldest_age_seconds: float
    utilisation: float
    reason: str
    changed_at: datetime
    updated_at: datetime


class LearnedLimit(BaseModel):
    """A limit that the dependency reported."""

    limit: float
    remaining: float
    reset_seconds: float


class Quota(BaseModel):
    """A dependency's limits per minute; null is not declared."""

    dependency: str
    requests_per_minute: float | None
    tokens_in_per_minute: float | None
    tokens_out_per_minute: float | None
    learned: dict[str, LearnedLimit]
    learned_at: datetime | None
    closed_until: datetime | None
    refused: int


class RecordedAct(BaseModel):
    """Something that an operator or a tenant did."""

    id: int
    at: datetime
    via: str = Field(description="`api`, `console` or `command line`.")
    who: str = Field(
        description="The id of the key; `console` or `anonymous` without one; on the command line"
        " the user of the system."
    )
    who_name: str | None = Field(description="The name of the key at that time.")
    role: str = Field(description="`operator`, `tenant`, or `unknown` of a refused request.")
    tenant: str | None = Field(description="The name of the tenant concerned.")
    what: Act
    target: str
    before: dict[str, Any] | None = Field(description="The fields that changed, as they were.")
    after: dict[str, Any] | None = Field(description="The same as they became.")
    address: str | None
    request_id: str | None


AuditLog = model("AuditLog", "Newest first.", acts=list[RecordedAct])


class Figures(BaseModel):
    """Tenants, jobs and rates."""

    tenants: int
    waiting: int = Field(description="Jobs that are scheduled or queued.")
    running: int = Field(description="Jobs that are dispatched or running.")
    in_per_minute: float | None = Field(description="Null: there are no recent samples.")
    out_per_minute: float | None


class CellEntry(BaseModel):
    """A cell."""

    name: str
    number: int
    region: str
    state: Literal["open", "draining"]
    figures: Figures | None = Field(description="Null: it does not respond.")


class PlatformOverview(BaseModel):
    """Every cell and their sums."""

    cells: list[CellEntry] = Field(description="By number; empty: there are none.")
    missing: list[str] = Field(description="Cells that do not respond; not in the total.")
    total: Figures


class Check(BaseModel):
    """A precondition for jobs to be accepted and run."""

    ok: bool
    detail: str = ""
    degraded: bool = False
    age_seconds: float | None = None
    slots: int = 0


class Readiness(BaseModel):
    """Whether a job would be accepted and run."""

    status: Literal["ready", "degraded", "not ready"]
    checks: dict[str, Check]


Tenants = model("Tenants", "A page of tenants, by name.", tenants=list[TenantEntry])
Keys = model("Keys", "Keys of a tenant, active ones first.", keys=list[Key])
RevokedKey = model("RevokedKey", "A revoked key.", id=str, revoked_at=datetime)
Scaling = model("Scaling", "Every pool the autoscaler has seen.", pools=dict[str, PoolScaling])
Quotas = model("Quotas", "All quotas, by dependency.", quotas=list[Quota])
Health = model("Health", "This process responds.", status=Literal["ok"])
