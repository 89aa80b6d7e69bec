"""What pages of the console, polls and feeds cost PostgreSQL, by the functions that they call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from sqlalchemy import Connection, Engine

from app.console.jobs.dead_letters import COUNTED, READ_GROUPS
from app.console.jobs.order import PAGE
from app.console.jobs.page import read_counts, read_rows
from app.console.overview.readings import DEATHS_SECONDS, read_cards, read_readings, read_samples
from app.reads.events.feed import read_ends, read_entries
from app.reads.events.position import START
from app.reads.job_views import read_jobs
from app.reads.search import Wanted, search
from app.reads.type_figures import read_type_figures
from app.scheduler.maintenance.recorder import FINE_STEP
from loadtest.fleet import database, rows
from loadtest.retention.flow import STATEMENT_SECONDS, TimedSession
from models.pools import POOLS

#: Calls that are not counted: statements are planned, buffers filled.
WARM_CALLS = 2
#: A tenant with one in a hundred of the jobs.
TENANT = 5
#: Polled in turn.
POLLED = 200

NEWEST = "SELECT id::text FROM jobs ORDER BY id DESC LIMIT :most"
OLDEST = "SELECT id::text FROM jobs ORDER BY id LIMIT :most"


@dataclass(frozen=True, slots=True)
class ReadCost:
    """One call of a read."""

    name: str
    #: Median, by the clock.
    milliseconds: float
    #: CPU time of the session.
    cpu_milliseconds: float


def overview(connection: Connection) -> object:
    """As the page reads it, but for the charts' samples, which do not depend on the jobs."""
    samples = read_samples(connection, FINE_STEP, DEATHS_SECONDS)
    _, cards = read_cards(connection, samples, tuple(POOLS))
    return read_readings(connection, cards), read_type_figures(connection)


def listing(wanted: Wanted) -> Callable[[Connection], object]:
    """A page of the list of jobs."""

    def read(connection: Connection) -> object:
        counts = read_counts(connection, wanted)
        return counts, read_rows(connection, search(connection, wanted, PAGE).ids)

    return read


def dead_letters(connection: Connection) -> object:
    """Without the cache of the page, which is there because this may take long."""
    asked = {"tenant": None, "most": COUNTED + 1}
    return connection.exec_driver_sql(READ_GROUPS, asked).all()


#: Pages by what they show, each with its queries.
PAGES: Mapping[str, Callable[[Connection], object]] = {
    "overview": overview,
    "jobs, newest": listing(Wanted()),
    "jobs of a tenant": listing(Wanted(tenant_id=TENANT)),
    "jobs, dead": listing(Wanted(statuses=("dead",))),
    "jobs, cancelled in long": listing(Wanted(statuses=("cancelled",), pool="long")),
    "jobs by error text": listing(Wanted(text="sense: 99ff")),
    "dead letters": dead_letters,
}


def polls(engine: Engine, ids: Sequence[str]) -> Callable[[], object]:
    """Reads one job after the other."""
    place = 0

    def read() -> object:
        nonlocal place
        place += 1
        with engine.connect() as connection:
            return read_jobs(connection, [ids[place % len(ids)]])

    return read


def feed(engine: Engine) -> object:
    """A reader that asks for what is new, and one that reads from the beginning."""
    end = read_ends(engine, [TENANT])[TENANT]
    pages = read_entries(engine, [(TENANT, end.position), (TENANT, START)])
    return [entry.event for page in pages for entry in page]


def measure_reads(url: str, calls: int) -> list[ReadCost]:
    """Every read some times, one after the other."""
    with database(url, STATEMENT_SECONDS) as engine:
        session = TimedSession(engine)

        def page(read: Callable[[Connection], object]) -> None:
            with engine.connect() as connection:
                read(connection)

        reads: dict[str, Callable[[], object]] = {
            name: partial(page, read) for name, read in PAGES.items()
        }
        for name, statement in (("poll, a new job", NEWEST), ("poll, an old job", OLDEST)):
            ids = [row.id for row in rows(engine, statement, most=POLLED)]
            reads[name] = polls(engine, ids)
        reads["feed of a tenant"] = partial(feed, engine)
        return [cost_of(session, name, read, calls) for name, read in reads.items()]


def cost_of(session: TimedSession, name: str, read: Callable[[], object], calls: int) -> ReadCost:
    for _ in range(WARM_CALLS):
        read()
    session.take()
    session.took.clear()
    for _ in range(calls):
        session.measured(read)
    return ReadCost(name, median(session.took), session.take() / calls / 1e3)
