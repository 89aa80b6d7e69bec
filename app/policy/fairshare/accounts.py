"""Values of the fair queue: a tenant's claim, a grant of jobs, and a tenant's account."""

from __future__ import annotations

from dataclasses import dataclass

from app.policy.fairshare.tiers import Entitlement


@dataclass(frozen=True, slots=True)
class TenantClaim:
    """What a tenant may claim in a pool."""

    entitlement: Entitlement
    #: Free accounts share one claim.
    free: bool = False
    #: Jobs that it may have in flight; None: any number.
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Jobs of a tenant that may be dispatched now."""

    tenant_id: int
    jobs: int
    #: Lane → at most so many of them.
    lanes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's position on the scale of the pool's virtual time."""

    #: Slot-seconds used ÷ weight, in the pool's virtual time. Needed after a restart.
    served: float
    #: Slot-seconds that the jobs in flight are expected to take.
    pending: float
    #: served + pending ÷ weight: the lowest is next.
    pass_: float
    in_flight: int
    #: Effective weight; for a free account, that of the whole group.
    weight: float
