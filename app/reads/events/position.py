"""Positions in a tenant's feed, and versions of one job's row.

PURE. The feed has one order: by transaction, and within a transaction first its rows of
``events`` by number, then the jobs it ended by id. A position is the last entry read, never
a bare transaction number: a number that was handed out but never committed may be handed
out again after a crash of the server, and an entry between two such would be skipped.

Numbers belong to a generation, which a restore or a promotion begins. Those of the first are
written without one, as they were before there were any.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from models.jobs.ids import BELOW_ALL

if TYPE_CHECKING:
    from models.feed import FeedGeneration

#: Stands for "none of this transaction's jobs yet"; no job has it.
NO_JOB = BELOW_ALL
#: Stands for "all of this transaction's rows of ``events``".
ALL_EVENTS = 2**63 - 1

NUMBER = r"(0|[1-9]\d{0,18})"
POSITION = re.compile(
    rf"(?:([0-9a-f]{{8}})\.)?{NUMBER}-(?:{NUMBER}|([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}))",
    re.ASCII,
)


class Position(NamedTuple):
    """The entry of the feed that was read last; compares in the order of the feed."""

    xid: int
    event_id: int
    job_id: str
    generation: str = ""

    def __str__(self) -> str:
        entry = f"{self.xid}-{self.event_id if self.job_id == NO_JOB else self.job_id}"
        return f"{self.generation}.{entry}" if self.generation else entry


#: Before everything.
START = Position(0, 0, NO_JOB)


def of_event(xid: int, event_id: int) -> Position:
    """The position of a row of ``events``."""
    return Position(xid, event_id, NO_JOB)


def of_end(xid: int, job_id: str) -> Position:
    """The position of the end of a job."""
    return Position(xid, ALL_EVENTS, job_id)


def parse_position(text: str) -> Position | None:
    """What a client sends back, or None if it was never given out."""
    found = POSITION.fullmatch(text)
    if found is None:
        return None
    generation, xid, event_id, job_id = found.groups()
    if int(xid) > ALL_EVENTS or int(event_id or 0) >= ALL_EVENTS or job_id == NO_JOB:
        return None
    entry = of_event(int(xid), int(event_id)) if event_id else of_end(int(xid), job_id)
    return entry._replace(generation=generation or "")


def resumed(position: Position, generations: Sequence[FeedGeneration]) -> Position:
    """Where a reader that was at this position goes on in the current generation.

    ``generations``: the current one last. A reader of an older one was told nothing that a later
    one numbered; of one that is unknown, and so was lost with a restore, nothing of the current
    one.
    """
    tags = [one.tag for one in generations]
    if position.generation == tags[-1]:
        return position
    known = position.generation in tags
    later = generations[tags.index(position.generation) + 1 :] if known else generations[-1:]
    first = min(one.first for one in later)
    at_most = position if position.xid < first else of_event(first, 0)
    return at_most._replace(generation=tags[-1])


def version_of(course: tuple[object, ...], progress: str | None) -> str:
    """An opaque name for what a client sees of a job: its course, and how far the run is."""
    return f"{_digest(repr(course))}.{_digest(progress or '')}"


def same_course(one: str, other: str) -> bool:
    """Whether two versions differ in their progress at most."""
    return one.partition(".")[0] == other.partition(".")[0]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
