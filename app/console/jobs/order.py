"""The order of the list of jobs and the links to its other pages.

By age in both directions, whatever the filter; by another column where that is cheap, see
:mod:`app.reads.ordered`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from app.api.http.query import bad_cursor, pack_cursor, unpack_cursor
from app.console.jobs.filter import JobFilter
from app.console.sorting import Sorting, parse_sort, with_links
from app.errors import invalid_field
from app.reads.ordered import KEYS, OrderedPlace, find_ordered, orders_of, parse_ordered
from app.reads.search import SearchPage, Wanted, search
from models.jobs.ids import BELOW_ALL, parse_id

PAGE = 50
NOTHING = SearchPage((), None)
NEWEST = Sorting("submitted", descending=True)


@dataclass(frozen=True, slots=True)
class ListedJobs:
    """A page of the list."""

    found: SearchPage = NOTHING
    #: As they are shown.
    ids: Sequence[str] = ()
    sorting: Sorting = NEWEST
    #: Whether this is the first page; and the others' links, None where there is nothing more.
    is_first: bool = True
    first: str | None = None
    older: str | None = None
    newer: str | None = None
    following: str | None = None
    #: The order that was asked for and is not offered; else empty.
    refused: str = ""


def list_jobs(
    connection: Connection, wanted: Wanted, chosen: JobFilter, args: Mapping[str, str]
) -> ListedJobs:
    """The page that the query asks for."""
    offered = orders_of(connection, wanted)
    asked = parse_sort(args.get("sort", ""), (NEWEST.name, *KEYS), NEWEST)
    sorting = asked if asked.name == NEWEST.name or asked.name in offered else NEWEST
    linked = with_links(sorting, (NEWEST.name, *offered), (), lambda sort: chosen.url(sort=sort))
    url = partial(chosen.url, sort=None if sorting == NEWEST else sorting.text)
    by = by_age if sorting.name == NEWEST.name else by_column
    page = by(connection, wanted, linked, args, url)
    return replace(page, refused="" if sorting == asked else asked.name)


def by_age(
    connection: Connection,
    wanted: Wanted,
    sorting: Sorting,
    args: Mapping[str, str],
    url: Callable[..., str],
) -> ListedJobs:
    """The newest first, or the oldest."""
    before, after = parse_place(args, "before"), parse_place(args, "after")
    is_first, rising = before is None and after is None, not sorting.descending
    if rising and is_first:
        after = BELOW_ALL
    found = search(connection, wanted, PAGE, before=before, after=after)
    older, newer = neighbours(found, before, after)
    if rising and is_first:
        older = None
    return ListedJobs(
        found=found,
        ids=found.ids[::-1] if rising else found.ids,
        sorting=sorting,
        is_first=is_first,
        first=None if is_first else url(),
        older=url(before=older) if older else None,
        newer=url(after=newer) if newer else None,
    )


def by_column(
    connection: Connection,
    wanted: Wanted,
    sorting: Sorting,
    args: Mapping[str, str],
    url: Callable[..., str],
) -> ListedJobs:
    """Sorted by one of the columns that are offered; pages go forwards only."""
    after = parse_behind(args)
    page = find_ordered(
        connection, wanted, PAGE, sorting.name, descending=sorting.descending, after=after
    )
    return ListedJobs(
        found=SearchPage(page.ids, None, page.cut),
        ids=page.ids,
        sorting=sorting,
        is_first=after is None,
        first=url() if after else None,
        following=url(behind=pack_cursor(str(page.cursor))) if page.cursor else None,
    )


def parse_behind(args: Mapping[str, str]) -> OrderedPlace | None:
    """Where a page of a sorted list begins."""
    if not args.get("behind"):
        return None
    try:
        return parse_ordered(unpack_cursor(args["behind"]))
    except ValueError:
        raise bad_cursor() from None


def parse_place(args: Mapping[str, str], name: str) -> str | None:
    """The id where a page begins."""
    text = args.get(name)
    if not text:
        return None
    found = parse_id(text)
    if found is None:
        raise invalid_field(name, "is not an id")
    return found


def neighbours(found: SearchPage, before: str | None, after: str | None) -> tuple[str | None, ...]:
    """Where older and newer pages begin; None where there is nothing more."""
    if after is not None:
        return (found.ids[-1] if found.ids else after), found.cursor
    if before is None:
        return found.cursor, None
    return found.cursor, (found.ids[0] if found.ids else before)
