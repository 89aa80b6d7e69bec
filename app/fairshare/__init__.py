"""Fair share: who is next for the slots of a pool. Pure: no clock, no I/O."""

from app.fairshare.accounts import Account, Grant, Standing
from app.fairshare.estimates import default_seconds
from app.fairshare.line import FairLine
from app.fairshare.tiers import FREE_SLICE, Entitlement, Tier, entitlement_of, free_slots
from app.fairshare.weights import effective_weights

__all__ = [
    "FREE_SLICE",
    "Account",
    "Entitlement",
    "FairLine",
    "Grant",
    "Standing",
    "Tier",
    "default_seconds",
    "effective_weights",
    "entitlement_of",
    "free_slots",
]
