"""Which dispatched jobs travel in one message, and what they add to the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.policy.window import packs, refs_in_message
from models.jobs.dispatch import Dispatch
from models.jobs.submission import Submission
from models.pools import POOLS, unmeasured_refs
from models.tallies import Count, TallyKind


def handed_over(dispatches: Sequence[Dispatch | Submission]) -> list[Count]:
    """What dispatched jobs add to the counts."""
    by_pool = Counter(each.pool for each in dispatches)
    return [((TallyKind.DISPATCHED, pool), (jobs, 0)) for pool, jobs in by_pool.items()]


def in_messages(
    dispatches: Sequence[Dispatch], workers: int, lengths: Mapping[str, float], slots: int = 0
) -> list[Sequence[Dispatch]]:
    """The dispatches of each message: of one type, for one queue. Messages are in the order of
    their first ones: the jobs of tenants with different types take turns as they were picked."""
    groups: dict[tuple[str, str], list[Dispatch]] = {}
    for dispatch in dispatches:
        groups.setdefault((dispatch.type, dispatch.queue), []).append(dispatch)
    messages: list[Sequence[Dispatch]] = []
    for group in groups.values():
        most = most_refs(group[0], lengths.get(group[0].type), slots)
        messages += packs(group, most, workers)
    if len(groups) > 1:
        places = {dispatch.id: place for place, dispatch in enumerate(dispatches)}
        messages.sort(key=lambda message: places[message[0].id])
    return messages


def most_refs(dispatch: Dispatch, seconds: float | None, slots: int) -> int:
    """References of such jobs, which take so long, that may share a message to a worker with so
    many slots."""
    pool = POOLS.get(dispatch.pool)
    if pool is None:
        return 1
    return refs_in_message(
        pool.refs_per_message, slots or pool.slots, seconds, unmeasured_refs(pool)
    )
