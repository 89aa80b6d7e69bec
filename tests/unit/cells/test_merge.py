"""Merged lists are those of one cell with all rows, page by page; sums are those of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from app.cells.merge import (
    Document,
    ListPage,
    RankedPlace,
    best_first,
    id_at,
    merge_pages,
    newest_first,
    rank_among,
    rank_entries,
    sum_replays,
    sum_tenants,
    union_of,
)
from app.cells.merged_usage import sum_usage

#: Few different ones, so that pages end in the middle of a tie.
SCORES = st.integers(0, 6).map(lambda number: number * 12.5)
IDS = st.integers(1, 2**128 - 1).map(lambda number: str(UUID(int=number)))
CELLS = st.integers(0, 3)

#: Reads a page behind a position.
Read = Callable[[Any, int], ListPage]


@st.composite
def rows_in_cells(draw: st.DrawFn) -> tuple[list[Document], list[list[Document]]]:
    """Scored jobs, and the same divided over some cells; some are in two at a time."""
    ids = draw(st.lists(IDS, unique=True, max_size=40))
    cells: list[list[Document]] = [[] for _ in range(draw(st.integers(1, 4)))]
    rows = []
    for job_id in ids:
        row = {"id": job_id, "score": draw(SCORES), "wanted": draw(st.booleans())}
        rows.append(row)
        for place in draw(st.lists(CELLS, min_size=1, max_size=2)):
            cell = cells[place % len(cells)]
            if row not in cell:
                cell.append(row)
    return rows, cells


def plain_page(rows: Sequence[Document], position: Callable[[Document], Any]) -> Read:
    """Pages of all rows, as a cell reads them: one row more says whether there is a next page."""
    placed = sorted((position(row), row["id"], row) for row in rows)

    def read(after: Any, limit: int) -> ListPage:
        found = [(at, row) for at, _, row in placed if after is None or at > after][: limit + 1]
        return ListPage(found[:limit], found[limit - 1][0] if len(found) > limit else None)

    return read


def scanning_page(rows: Sequence[Document], looks: int) -> Read:
    """Pages of the wanted rows that look at so many at a time: they may be short, or empty."""
    placed = sorted((newest_first(row["id"]), row["id"], row) for row in rows)

    def read(after: Any, limit: int) -> ListPage:
        seen = [(at, row) for at, _, row in placed if after is None or at > after][:looks]
        found = [(at, row) for at, row in seen if row["wanted"]][: limit + 1]
        if len(found) > limit:
            return ListPage(found[:limit], found[limit - 1][0])
        return ListPage(found, seen[-1][0] if len(seen) == looks else None)

    return read


def merged(cells: Sequence[Read]) -> Read:
    """Pages of several cells as one."""
    return lambda after, limit: merge_pages([read(after, limit) for read in cells], limit)


def walk(read: Read, limit: int) -> Iterator[ListPage]:
    """All pages."""
    after = None
    while True:
        page = read(after, limit)
        yield page
        if page.end is None:
            return
        assert after is None or page.end > after, "a page that leads nowhere"
        after = page.end


@given(
    rows_in_cells(),
    st.integers(1, 12),
    st.sampled_from([best_first, lambda r: newest_first(r["id"])]),
)
def test_pages_of_several_cells_are_those_of_one_with_all_rows(
    divided: tuple[list[Document], list[list[Document]]],
    limit: int,
    position: Callable[[Document], Any],
) -> None:
    rows, cells = divided
    one = plain_page(rows, position)
    several = merged([plain_page(cell, position) for cell in cells])

    assert list(walk(several, limit)) == list(walk(one, limit))


@given(rows_in_cells(), st.integers(1, 12), st.integers(1, 9))
def test_filtered_pages_show_every_row_once_in_order(
    divided: tuple[list[Document], list[list[Document]]], limit: int, looks: int
) -> None:
    rows, cells = divided
    several = merged([scanning_page(cell, looks) for cell in cells])

    shown = [row for page in walk(several, limit) for row in page.documents]

    assert shown == [
        row for row in sorted(rows, key=lambda row: newest_first(row["id"])) if row["wanted"]
    ]


@given(rows_in_cells(), st.integers(1, 12))
def test_ranks_go_on_over_pages_and_ties_share_one(
    divided: tuple[list[Document], list[list[Document]]], limit: int
) -> None:
    rows, cells = divided
    several = merged([plain_page(cell, best_first) for cell in cells])

    shown: list[Document] = []
    last: RankedPlace | None = None
    for page in walk(several, limit):
        ranked, last = rank_entries(page.documents, last)
        shown += ranked

    assert [row["rank"] for row in shown] == [
        1 + sum(other["score"] > row["score"] for other in rows) for row in shown
    ]
    assert last is None or last.place == len(rows)


@given(rows_in_cells(), SCORES)
def test_a_rank_counts_what_is_above_in_all_cells(
    divided: tuple[list[Document], list[list[Document]]], score: float
) -> None:
    _, cells = divided
    above = [sum(row["score"] > score for row in cell) for cell in cells]

    assert rank_among(1 + number for number in above) == 1 + sum(above)


def test_a_row_in_two_cells_is_that_of_the_first() -> None:
    here, there = {"id": "here"}, {"id": "there"}
    pages = [ListPage([(1, here)], None), ListPage([(1, there), (2, there)], None)]

    assert merge_pages(pages, 5).documents == [here, there]


def test_nothing_is_shown_beyond_what_a_cell_has_looked_at() -> None:
    pages = [ListPage([(1, {}), (5, {})], None), ListPage([], 3)]

    assert merge_pages(pages, 5) == ListPage([(1, {})], 3)


@given(IDS)
def test_a_position_is_that_of_its_id(job_id: str) -> None:
    assert id_at(newest_first(job_id)) == job_id


USED = st.fixed_dictionaries(
    {
        "jobs": st.integers(0, 1_000),
        "runs": st.integers(0, 1_000),
        "slot_seconds": st.integers(0, 10**12).map(lambda number: number / 1_000_000),
        "tokens_in": st.integers(0, 10**9),
        "tokens_out": st.integers(0, 10**9),
    }
)
PRICES = {
    "per_slot_second": "0.00002",
    "per_job": "0.00001",
    "per_million_tokens_in": "1",
    "per_million_tokens_out": "5",
}


def report(lines: Sequence[tuple[str, str, Document]]) -> Document:
    """A report of one cell, whose prices of lines are not used."""
    days = [{"day": day, "pool": pool, **used, "cost": "7"} for day, pool, used in lines]
    return {"tenant": "acme", "currency": "USD", "prices": PRICES, "total": {}, "days": days}


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["2030-01-01", "2030-01-02"]), st.sampled_from(["a", "b"]), USED
            ),
            unique_by=lambda line: line[:2],
        ),
        min_size=1,
        max_size=4,
    )
)
def test_usage_is_added_by_day_and_pool_and_priced_once(
    cells: list[list[tuple[str, str, Document]]],
) -> None:
    total = sum_usage([report(lines) for lines in cells])

    everything = [line for lines in cells for line in lines]
    assert [(day["day"], day["pool"]) for day in total["days"]] == sorted(
        {(day, pool) for day, pool, _ in everything}
    )
    for name in ("jobs", "runs", "tokens_in", "tokens_out"):
        assert total["total"][name] == sum(used[name] for _, _, used in everything)
    for day in total["days"]:
        exact = (
            day["jobs"] * Decimal(PRICES["per_job"])
            + Decimal(repr(day["slot_seconds"])) * Decimal(PRICES["per_slot_second"])
            + (day["tokens_in"] + day["tokens_out"] * 5) * Decimal("0.000001")
        )
        assert abs(Decimal(day["cost"]) - exact) <= Decimal("0.0000005")
    spent = sum((Decimal(day["cost"]) for day in total["days"]), Decimal(0))
    assert total["total"]["cost"] == f"{spent:.6f}", "an invoice adds up"


def test_a_tenant_has_what_waits_in_all_cells() -> None:
    one = {
        "name": "acme",
        "waiting": {"medium": {"scheduled": 1, "queued": 2}},
        "refusals": {"2030-01-01": {"B": 1}},
    }
    other = {
        "name": "acme",
        "waiting": {"long": {"scheduled": 0, "queued": 5}, "medium": {"scheduled": 3, "queued": 4}},
        "refusals": {"2030-01-02": {"A": 7}, "2030-01-01": {"A": 1, "B": 2}},
    }

    total = sum_tenants([one, other])

    assert total["waiting"] == {
        "long": {"scheduled": 0, "queued": 5},
        "medium": {"scheduled": 4, "queued": 6},
    }
    assert list(total["refusals"]) == ["2030-01-02", "2030-01-01"], "the latest day first"
    assert total["refusals"]["2030-01-01"] == {"A": 1, "B": 3}


def test_ids_that_a_cell_does_not_have_are_skipped_only_if_no_cell_has_them() -> None:
    one = {"replayed": 1, "skipped": 2, "ids": ["a"]}
    other = {"replayed": 1, "skipped": 2, "ids": ["b"]}
    assert union_of([one, other], "replayed") == {"replayed": 2, "skipped": 1, "ids": ["a", "b"]}

    by_filter = [{"discarded": 1, "skipped": 0, "ids": ["a"]}] * 2
    assert union_of(by_filter, "discarded") == {"discarded": 1, "skipped": 0, "ids": ["a"]}


def test_a_replay_runs_as_long_as_one_cell_works_it_off() -> None:
    done = {
        "id": "r",
        "state": "finished",
        "total": 5,
        "done": 5,
        "reason": None,
        "requested_at": "2030-01-01T00:00:00.002Z",
        "finished_at": "2030-01-01T00:01:00.000Z",
    }
    going_on = done | {"state": "running", "done": 1, "reason": "LIMIT", "finished_at": None}

    both = sum_replays([done, going_on])
    assert (both["state"], both["total"], both["done"]) == ("running", 10, 6)
    assert (both["reason"], both["finished_at"]) == ("LIMIT", None)
    assert sum_replays([done, done])["finished_at"] == done["finished_at"]
    assert sum_replays([done, done | {"state": "cancelled"}])["state"] == "cancelled"
