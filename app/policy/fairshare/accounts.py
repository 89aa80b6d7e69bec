"""The words of the line: what a tenant may claim, what it was granted, where it stands."""

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
    """Jobs that a tenant may have dispatched now."""

    tenant_id: int
    jobs: int
    #: Lane → at most so many of them.
    lanes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Account:
    """Where a tenant stands, on the scale of the pool's virtual time."""

    #: Slot-seconds used ÷ weight, in the pool's virtual time. This is what a restart needs.
    served: float
    #: Slot-seconds that the jobs in flight are expected to take.
    pending: float
    #: served + pending ÷ weight: the lowest is next.
    pass_: float
    in_flight: int
    #: Effective weight; of a free account, that of the whole group.
    weight: float
