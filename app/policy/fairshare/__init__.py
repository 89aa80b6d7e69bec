"""Fair share: which tenant gets the next slots of a pool. Pure: no clock, no I/O."""

from app.policy.fairshare.allocation import Grant
from app.policy.fairshare.contention import note_turn
from app.policy.fairshare.probes import fewest_first
from app.policy.fairshare.queue import Account, FairQueue, TenantClaim, default_seconds
from app.policy.fairshare.tiers import FREE_SLICE, Entitlement, Tier, entitlement_of, free_slots
from app.policy.fairshare.weights import effective_weights

__all__ = [
    "FREE_SLICE", "Account", "Entitlement", "FairQueue", "Grant", "TenantClaim", "Tier",
    "default_seconds", "effective_weights", "entitlement_of", "fewest_first", "free_slots",
    "note_turn",
]  # fmt: skip
