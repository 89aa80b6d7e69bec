"""A tenant over three cells: one leaderboard in exact order, also with a cell killed and back.

Applications are scored in all three; the leaderboard is read page by page by the API and compared
with what the three databases have together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.cells.clients import ROLE, Clients, application
from loadtest.cells.experiment_run import Run
from loadtest.cells.installation import Cell, CellPlan, Customer, Installation, installation
from loadtest.cells.judge import settle
from loadtest.chaos.client import Answer, Api
from loadtest.fleet import rows, until
from loadtest.lab.experiment import Size
from loadtest.report import Report, Table, at_least, at_most
from models.cells.moves import read_move, request_move

TITLE = "A tenant over three cells"
PAGE = 50
SPREAD_SECONDS = 60.0
SCORES = """
    SELECT id::text AS id, score::float8 AS score FROM applications
    WHERE tenant_id = :tenant AND role = :role AND score IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Plan:
    applications: int
    per_second: float
    away_seconds: float


PLANS = {
    Size.FULL: Plan(3_000, 60.0, 20.0),
    Size.QUICK: Plan(600, 40.0, 8.0),
    Size.MINI: Plan(60, 20.0, 3.0),
}


@dataclass(frozen=True, slots=True)
class Board:
    """A leaderboard as it was read, beside what it should have been."""

    name: str
    entries: int
    #: Places at which the two differ.
    wrong: int
    status: int


def run(run: Run) -> Report:
    plan = PLANS[run.size]
    plans = [CellPlan(f"cell-{number}") for number in (1, 2, 3)]
    with installation("cells-spread", plans) as made:
        cells = list(made.cells.values())
        customer = made.customer("large", cells[0])
        port = made.start_api(workers=1)
        spread(made, customer)
        clients = Clients([customer], {"": port}, plan.per_second, application, name="spread")
        with clients.running():
            run.wait("applications", plan.applications / plan.per_second)
        settle(cells)
        boards = [read_board("all three cells", port, customer, cells)]
        cells[2].kill_database()
        run.wait("one cell killed", plan.away_seconds)
        whole, slowest = timed(port, customer, f"/leaderboard?role={ROLE}")
        boards.append(read_board("two cells, partial=true", port, customer, cells[:2], "true"))
        known = {row.id for row in scores(customer, cells[:2])}
        singles = read_singles(port, customer, sorted(known)[:20])
        cells[2].restart_database()
        until(lambda: timed(port, customer, f"/leaderboard?role={ROLE}")[0].status == 200, 30.0)
        boards.append(read_board("the third is back", port, customer, cells))
        by_cell = [len(scores(customer, [cell])) for cell in cells]
    return report(plan, clients, boards, by_cell, whole.status, slowest, singles)


def spread(made: Installation, customer: Customer) -> None:
    """Have the tenant live in all cells, evenly."""
    registry = made.registry
    assert registry is not None
    request_move(registry, customer.name, dict.fromkeys(made.cells, 1.0))
    until(
        lambda: read_move(registry, customer.name) is None, SPREAD_SECONDS, "the tenant to spread"
    )
    time.sleep(1.5)  # API processes look every second


def scores(customer: Customer, cells: Sequence[Cell]) -> list[Any]:
    """The scored applications of some cells, best first, as a leaderboard has them."""
    found = [
        row for cell in cells for row in rows(cell.engine, SCORES, tenant=customer.id, role=ROLE)
    ]
    # Of equal scores, the one that was submitted first.
    return sorted(found, key=lambda row: (-row.score, row.id))


def timed(port: int, customer: Customer, path: str) -> tuple[Answer, float]:
    began = time.monotonic()
    with Api(port) as api:
        return api.call("GET", path, headers=customer.headers), time.monotonic() - began


def read_board(
    name: str, port: int, customer: Customer, cells: Sequence[Cell], partial: str = ""
) -> Board:
    """Read all pages, and compare."""
    more = f"&partial={partial}" if partial else ""
    page: str | None = f"/leaderboard?role={ROLE}&limit={PAGE}{more}"
    entries: list[Any] = []
    status = 200
    with Api(port) as api:
        while page and status == 200:
            answer = api.call("GET", page, headers=customer.headers)
            status = answer.status
            if status == 200:
                entries += answer.document["entries"]
            link = (answer.headers or {}).get("link", "")
            page = link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else None
    expected = [(row.id, row.score) for row in scores(customer, cells)]
    got = [(entry["id"], float(entry["score"])) for entry in entries]
    wrong = sum(one != other for one, other in zip(got, expected, strict=False))
    return Board(name, len(got), wrong + abs(len(got) - len(expected)), status)


def read_singles(port: int, customer: Customer, ids: Sequence[str]) -> int:
    """How many of these applications cannot be read."""
    answers = [timed(port, customer, f"/applications/{one}")[0].status for one in ids]
    return sum(status != 200 for status in answers)


def report(
    plan: Plan,
    clients: Clients,
    boards: Sequence[Board],
    by_cell: Sequence[int],
    whole: int,
    slowest: float,
    singles: int,
) -> Report:
    lines = [(b.name, f"{b.entries:,}", str(b.wrong), str(b.status)) for b in boards]
    least, most = min(by_cell), max(by_cell)
    total = len(clients.accepted)
    return Report(
        name="cells-spread",
        title=TITLE,
        findings=[
            f"{total:,} applications of one tenant were scored in three cells"
            f" ({', '.join(f'{count:,}' for count in by_cell)}); its leaderboard was in exact order"
            f" {sum(b.wrong == 0 for b in boards)} of {len(boards)} times. With one cell killed,"
            f" the whole board was a {whole} after {slowest:.2f} s."
        ],
        tables=[Table("Leaderboards", ("", "entries", "wrong places", "status"), lines)],
        bars=[
            *(at_most(f"wrong places: {board.name}", board.wrong) for board in boards),
            at_least("whole leaderboard without a cell is refused", float(whole == 503), 1.0),
            at_most("… within", slowest, 2.5, " s"),
            at_most("applications of living cells that cannot be read", singles),
            at_least("smallest part of a cell, of an even one", 3 * least / max(1, total), 0.8),
            at_most("largest part of a cell, of an even one", 3 * most / max(1, total), 1.2),
            at_least("accepted", total, 0.9 * plan.applications),
        ],
        notes=clients.strange[:3],
        data={"boards": lines, "by_cell": list(by_cell)},
    )
