"""Contention: whether tenants had to wait for slots in a turn. Pure."""

from __future__ import annotations

from collections.abc import Collection

from app.policy.fairshare.queue import FairQueue


def note_turn(
    queue: FairQueue, *, idle: bool, held: Collection[str], paced: Collection[str]
) -> bool:
    """Forgive debts after a turn in which nobody had to wait; whether somebody had to.

    ``idle``: fewer jobs were granted than there was room for. ``held``: lanes that are held back,
    and ``paced`` those of them that wait for a quota. Tenants in these compete for it: forgiven
    debts would give it to anybody.
    """
    if idle and not queue.any_waiting(set(held) - set(paced)):
        queue.forgive_debts(held)
    return not idle or queue.any_waiting(held)
