"""Merging what several cells answered, as if one database had all of it. Pure.

A list is merged by the position of its rows, never by that of a cell: ids, scores and names are
comparable over all cells. So a cursor holds one position, the same for every cell, and stays valid
while rows go from one cell to another and when there is one cell again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any
from uuid import UUID

#: JSON, as a cell answers.
Document = dict[str, Any]
#: The position of a row; rises along the list.
Position = Any
#: A place in the merged list and the row there.
Placed = tuple[Position, Document]


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list, of one cell or of all."""

    #: In the order of the list.
    entries: Sequence[Placed]
    #: How far it goes: every row up to here that is wanted is in it. None: there is no more.
    end: Position | None

    @property
    def documents(self) -> list[Document]:
        return [document for _, document in self.entries]


def merge_pages(pages: Sequence[ListPage], limit: int) -> ListPage:
    """The first rows of all pages, which begin at the same position.

    A row that is in several of them, because it is being transferred, is that of the first.
    Nothing is shown beyond a position that some cell has not looked beyond: it may have rows there.
    """
    ends = [page.end for page in pages if page.end is not None]
    end = min(ends, default=None)
    known = unique(merge(*(page.entries for page in pages), key=position_of))
    shown = (entry for entry in known if end is None or position_of(entry) <= end)
    entries = list(islice(shown, limit + 1))
    if len(entries) > limit:
        return ListPage(entries[:limit], position_of(entries[limit - 1]))
    return ListPage(entries, end)


def unique(entries: Iterable[Placed]) -> Iterable[Placed]:
    """The first of the rows at each position; ``merge`` keeps the order of the pages among them."""
    last: Position | None = None
    for entry in entries:
        if last is None or position_of(entry) != last:
            yield entry
        last = position_of(entry)


def position_of(entry: Placed) -> Position:
    """Where a row is in its list."""
    return entry[0]


def newest_first(job_id: str) -> int:
    """The position of an id in a list that begins with the newest."""
    return -UUID(job_id).int


def id_at(position: int) -> str:
    """The id at that position."""
    return str(UUID(int=-position))


def best_first(entry: Document) -> tuple[float, str]:
    """The position of an entry of a leaderboard."""
    return -entry["score"], entry["id"]


@dataclass(frozen=True, slots=True)
class RankedPlace:
    """The entry of a leaderboard that was shown last."""

    score: float
    rank: int
    #: Position in the order, not shared by ties.
    place: int


def rank_entries(
    entries: Sequence[Document], last: RankedPlace | None
) -> tuple[list[Document], RankedPlace | None]:
    """The entries with their ranks among all, after the one shown last; and the new last one."""
    ranked = []
    for entry in entries:
        place = last.place + 1 if last else 1
        rank = last.rank if last and last.score == entry["score"] else place
        last = RankedPlace(entry["score"], rank, place)
        ranked.append(entry | {"rank": rank})
    return ranked, last


def rank_among(ranks: Iterable[int]) -> int:
    """The rank of a score among all cells, by its rank in each: so many are above it."""
    return 1 + sum(rank - 1 for rank in ranks)


def sum_counts(documents: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Counts by two names, such as pool and state."""
    total: dict[str, dict[str, int]] = {}
    for document in documents:
        for name, counts in document.items():
            into = total.setdefault(name, {})
            for other, number in counts.items():
                into[other] = into.get(other, 0) + number
    return total


def sum_tenants(documents: Sequence[Document]) -> Document:
    """A tenant's terms, with what waits and was refused in all cells."""
    waiting = sum_counts(document["waiting"] for document in documents)
    refusals = sum_counts(document["refusals"] for document in documents)
    return documents[0] | {
        "waiting": dict(sorted(waiting.items())),
        "refusals": {
            day: dict(sorted(codes.items()))
            for day, codes in sorted(refusals.items(), reverse=True)
        },
    }


def sum_replays(documents: Sequence[Document]) -> Document:
    """The progress of a replay that every cell works off for itself."""
    running = [one for one in documents if one["state"] == "running"]
    ended = [one["finished_at"] for one in documents]
    states = {one["state"] for one in documents}
    return documents[0] | {
        "state": "running" if running else "cancelled" if "cancelled" in states else "finished",
        "total": sum(one["total"] for one in documents),
        "done": sum(one["done"] for one in documents),
        "reason": next((one["reason"] for one in running if one["reason"]), None),
        "requested_at": min(one["requested_at"] for one in documents),
        "finished_at": None if running else max(ended),
    }


def union_of(answers: Sequence[Document], count: str) -> Document:
    """Ids that something was done with, each once, however many cells had it.

    ``count``: the field that says how many. Every cell was sent all ids and skipped those that it
    does not have.
    """
    ids = list(dict.fromkeys(job_id for answer in answers for job_id in answer["ids"]))
    asked = answers[0][count] + answers[0]["skipped"]
    by_filter = not any(answer["skipped"] for answer in answers)
    return {count: len(ids), "skipped": 0 if by_filter else asked - len(ids), "ids": ids}
