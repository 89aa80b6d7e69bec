"""Schemas of answers about schedules, tenants and the platform."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.policy.fairshare import Tier
from app.tenants.ticks import CatchUp, Overlap


class ScheduleEntry(BaseModel):
    """A schedule in a list."""

    id: UUID
    name: str
    cron: str
    timezone: str
    overlap: Overlap
    catch_up: CatchUp
    type: str
    priority: int
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: UUID | None
    made: int
    skipped: int
    created_at: datetime


class Schedule(ScheduleEntry):
    """A schedule with the payload of its jobs."""

    payload: Any


class Schedules(BaseModel):
    """A page of schedules, by name."""

    schedules: list[ScheduleEntry]


class LimitsInPool(BaseModel):
    """What a tenant may have in a pool; null is the deployment's default."""

    in_flight: int | None
    reserved: int | None
    depth: int | None


class EffectiveTerms(BaseModel):
    """Terms with the deployment's defaults applied."""

    weight: float
    submit_per_second: float | None
    submit_burst: float | None
    depth: dict[str, int] = Field(description="By pool.")
    in_flight: dict[str, int] = Field(description="By pool; without a cap it is not named.")


class Waiting(BaseModel):
    """Jobs of a tenant that wait in a pool."""

    scheduled: int
    queued: int


class Terms(BaseModel):
    """What was agreed with a tenant; null is the deployment's default."""

    name: str
    tier: Tier
    weight: float | None
    submit_per_second: float | None
    submit_burst: float | None
    limits: dict[str, LimitsInPool] = Field(description="By pool.")


class Standing(BaseModel):
    """What the terms come to, and how the tenant does by them."""

    effective: EffectiveTerms
    waiting: dict[str, Waiting] = Field(description="By pool.")
    refusals: dict[str, dict[str, int]] = Field(description="By day and code, seven days.")


class Tenant(Terms, Standing):
    """A tenant as it sees itself."""


class TenantEntry(Terms):
    """A tenant as operators see it."""

    created_at: datetime


class TenantInFull(TenantEntry, Standing):
    """A tenant with all that is known of it."""


class Tenants(BaseModel):
    """A page of tenants, by name."""

    tenants: list[TenantEntry]


class Key(BaseModel):
    """A key without its secret."""

    id: str
    tenant: str | None = Field(description="Null is an operator's.")
    name: str
    created_at: datetime
    revoked_at: datetime | None


class IssuedKey(Key):
    """A key, the one time that it is shown."""

    key: str


class Keys(BaseModel):
    """Keys of a tenant, those in use first."""

    keys: list[Key]


class RevokedKey(BaseModel):
    """A key that opens nothing any more."""

    id: str
    revoked_at: datetime


class Usage(BaseModel):
    """What was used, and what it costs."""

    jobs: int
    runs: int
    slot_seconds: float
    tokens_in: int
    tokens_out: int
    cost: str = Field(description="A decimal number.")


class UsageOfDay(Usage):
    """The same for a day and a pool."""

    day: date
    pool: str


class Prices(BaseModel):
    """What each unit costs: decimal numbers."""

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
    """Workers that a pool should have, and why."""

    desired: int
    current: int
    depth: int
    oldest_age_seconds: float
    utilisation: float
    reason: str
    changed_at: datetime
    updated_at: datetime


class Scaling(BaseModel):
    """Every pool that the autoscaler has looked at."""

    pools: dict[str, PoolScaling]


class LearnedLimit(BaseModel):
    """What an answer of the dependency told."""

    limit: float
    remaining: float
    reset_seconds: float


class Quota(BaseModel):
    """What a dependency takes in a minute; null is not declared."""

    dependency: str
    requests_per_minute: float | None
    tokens_in_per_minute: float | None
    tokens_out_per_minute: float | None
    learned: dict[str, LearnedLimit]
    learned_at: datetime | None
    closed_until: datetime | None
    refused: int


class Quotas(BaseModel):
    """All quotas, by dependency."""

    quotas: list[Quota]


class Health(BaseModel):
    """That this process answers."""

    status: Literal["ok"]


class Check(BaseModel):
    """One thing that a job needs to be accepted and run."""

    ok: bool
    detail: str = ""
    degraded: bool = False
    age_seconds: float | None = None
    slots: int = 0


class Readiness(BaseModel):
    """Whether a job would be accepted and run."""

    status: Literal["ready", "degraded", "not ready"]
    checks: dict[str, Check]
