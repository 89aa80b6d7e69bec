"""Which feeds are read in one pass, and in which order: none waits for those that are far behind.

A feed is behind while there is a page of entries for it, and when it begins at an earlier place. A
tenant may have thousands of these, each at a place of its own, so a few of them are read in each
pass, those first that have waited longest. All that are at their end are read in every pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from app.reads.events.feed import Place
from app.reads.events.stream import FeedStream

Item = TypeVar("Item")
#: Those that want the same entries, together.
Readers = dict[Place, list[FeedStream]]

#: Places in one statement; between two statements other threads run.
PLACES_AT_ONCE = 50
#: Of those that are behind, each of which has a page: in one statement, and of a tenant in a pass.
BEHIND_AT_ONCE = 5
BEHIND_OF_TENANT = 5


def choose(readers: Readers) -> tuple[list[list[Place]], bool]:
    """The places to be read in this pass, by statement; whether some have to wait for the next."""
    behind = {
        place: min(reader.read_at for reader in waiting)
        for place, waiting in readers.items()
        if all(reader.behind for reader in waiting)
    }
    chosen: list[Place] = []
    of_tenants: Counter[int] = Counter()
    for place in sorted(behind, key=behind.__getitem__):
        if of_tenants[place[0]] < BEHIND_OF_TENANT:
            of_tenants[place[0]] += 1
            chosen.append(place)
    at_end = (place for place in readers if place not in behind)
    statements = [*batches(at_end, PLACES_AT_ONCE), *batches(chosen, BEHIND_AT_ONCE)]
    return statements, len(chosen) < len(behind)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items, so many at a time."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
