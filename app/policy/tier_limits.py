"""Tier limits: how often a tenant may submit and call, and what it may have, by default. Pure.

They hold where a tenant has no limit of its own, unless they are lifted for it (``tier_limits``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.policy.fairshare.tiers import Tier

#: The pool whose caps hold in pools that are not named here.
OTHER_POOLS = "long"


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What a tenant of a tier may do unless something else was agreed."""

    #: Submissions per second; None: as many as it likes.
    submit_per_second: float | None = None
    #: Jobs in flight at most, by pool; empty: as many as its share gives it.
    in_flight: Mapping[str, int] | None = None
    #: Other requests per second to one API process; None: as many as it likes.
    requests_per_second: float | None = None
    #: Idempotency keys that are kept; None: any number.
    idempotency_keys: int | None = None
    #: Bytes in the blob store; None: as many as it likes.
    blob_bytes: int | None = None

    def cap(self, pool: str) -> int | None:
        """Jobs in flight at most in a pool; None: no cap."""
        caps = self.in_flight or {}
        return caps.get(pool, caps.get(OTHER_POOLS))


TIER_LIMITS: Mapping[Tier, TierLimits] = {
    Tier.FREE: TierLimits(
        submit_per_second=10.0,
        in_flight={"short": 10, "medium": 5, "long": 1},
        requests_per_second=100.0,
        idempotency_keys=10**6,
        blob_bytes=10**10,
    ),
    Tier.STANDARD: TierLimits(
        submit_per_second=100.0,
        in_flight={"short": 200, "medium": 100, "long": 20},
        requests_per_second=1_000.0,
        idempotency_keys=10**7,
        blob_bytes=10**11,
    ),
    Tier.PRO: TierLimits(
        submit_per_second=10_000.0,
        in_flight={"short": 2_000, "medium": 1_000, "long": 200},
        requests_per_second=10_000.0,
        idempotency_keys=10**8,
        blob_bytes=10**12,
    ),
    Tier.ENTERPRISE: TierLimits(),
}
