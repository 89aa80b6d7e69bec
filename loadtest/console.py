"""``make bench-console``: what the console costs with a million jobs in the tables.

A Fairline of its own is filled with ended and waiting jobs of fifty tenants. Every page is asked
for some times, one request after the other, and some are loaded in a real browser. Then ten
viewers watch pages as browsers do, over server-sent events, and what the API's processes and
PostgreSQL use on top of a stretch without viewers is their cost. Nothing changes meanwhile but
the samples that the scheduler takes: what a busy deployment changes is pushed as well, but read
and rendered no more often than here.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from urllib.parse import quote

from rich.console import Console

from loadtest.console_rows import Load, fill, time_loads
from loadtest.figures import cpu_seconds, percentile
from loadtest.fleet import Fairline, fleet, rows
from loadtest.report import NO_FAIL, Bar, Report, Screen, options, table
from models.settings import DatabaseSettings
from models.store.session import open_engine

ENDED, WAITING = 1_000_000, 100_000
REQUESTS = 20
#: The first compile the template and meet a cold connection.
WARM_REQUESTS = 2
#: Viewers come at different moments of a page's rhythm, and the first look is not the usual one.
SETTLE_SECONDS = 8
#: Who has gone is noticed by the second keep-alive that does not arrive.
GONE_SECONDS = 35
MOST_MILLISECONDS = 300.0
MOST_PERCENT = 2.0
FIND_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, 'api@')"
MOST_LOAD_MILLISECONDS = 1_000.0

#: What is asked for; the overview and the list of jobs have a bar.
PAGES = (
    "/",
    "/?window=24h",
    "/console/jobs",
    "/console/jobs?status=queued",
    "/console/jobs?status=dead",
    "/console/jobs?status=cancelled&pool=long",
    "/console/jobs?type=sleep&tenant=t7",
    "/console/jobs?text=sense%3A%2099",
    "/console/jobs?text=nowhere",
    "/console/jobs?tenant=t7&status=expired",
    "/console/jobs/{job}",
    "/console/dead-letters",
    "/console/tenants",
    "/console/tenants/t7",
    "/console/leaderboard?tenant=t7",
    "/console/workers",
    "/console/schedules",
    "/console/limits",
    "/console/lab",
)
BARRED = ("/", "/console/jobs")
#: Ten viewers: most look at the overview and at the jobs.
WATCHED = (
    *("/", "/", "/", "/?window=24h", "/console/jobs", "/console/jobs?status=queued"),
    *("/console/dead-letters", "/console/tenants", "/console/workers", "/console/leaderboard"),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a page took, in milliseconds."""

    path: str
    status: int
    median: float
    p95: float
    #: On the processor, of the API and PostgreSQL together.
    processor: float
    kilobytes: float


@dataclass(frozen=True, slots=True)
class Use:
    """Percent of a core, by part."""

    api: float
    postgres: float

    @property
    def both(self) -> float:
        return self.api + self.postgres


def time_pages(
    port: int, paths: Sequence[str], pids: Sequence[int], screen: Screen
) -> list[Timing]:
    """Every page, one request after the other on one connection."""
    timings = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for number in screen.steps("asking for pages", len(paths)):
        path, taken, status, size, used = paths[number], [], 0, 0, 0.0
        for request in range(WARM_REQUESTS + REQUESTS):
            if request == WARM_REQUESTS:
                used = cpu_seconds(pids)
            began = time.perf_counter()
            connection.request("GET", path, headers={"Accept": "text/html"})
            answer = connection.getresponse()
            size, status = len(answer.read()), answer.status
            taken.append((time.perf_counter() - began) * 1000)
        measured = taken[WARM_REQUESTS:]
        processor = (cpu_seconds(pids) - used) / REQUESTS * 1000
        times = (statistics.median(measured), percentile(measured, 0.95), processor)
        timings.append(Timing(path, status, *times, size / 1000))
    connection.close()
    return timings


class Viewer(threading.Thread):
    """Somebody who has a page open."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._wire = socket.create_connection(("127.0.0.1", port), timeout=60)
        target = f"/console/events?page={quote(path, safe='')}"
        self._wire.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        #: What came, and how many events that were.
        self.bytes = self.events = 0

    def run(self) -> None:
        while chunk := self._wire.recv(65_536):
            self.bytes += len(chunk)
            self.events += chunk.count(b"event: parts")

    def close(self) -> None:
        self._wire.shutdown(socket.SHUT_RDWR)
        self.join(5.0)
        self._wire.close()
        if not self.events:
            raise RuntimeError(f"whoever watched {self._path} was told nothing")


@contextmanager
def viewers(port: int, paths: Sequence[str]) -> Iterator[list[Viewer]]:
    """So many viewers, as long as the block lasts."""
    watching = [Viewer(port, path) for path in paths]
    for viewer in watching:
        viewer.start()
    try:
        yield watching
    finally:
        for viewer in watching:
            viewer.close()


def measure_use(
    api: Sequence[int], postgres: Sequence[int], seconds: int, screen: Screen, name: str
) -> Use:
    """What both use for so long."""
    before = cpu_seconds(api), cpu_seconds(postgres)
    began = time.monotonic()
    screen.wait(name, seconds)
    lasted = time.monotonic() - began
    return Use(
        100 * (cpu_seconds(api) - before[0]) / lasted,
        100 * (cpu_seconds(postgres) - before[1]) / lasted,
    )


def run(ended: int, waiting: int, seconds: int, console: Console) -> Report:
    """Fill, ask, watch."""
    with Screen(console) as screen, fleet("console") as started:
        pools = "short,medium,long"
        keep = {"keep_finished_days": "30", "keep_dead_days": "30"}
        fairline = Fairline(started, served_pools=pools, console_open="true", **keep)
        settings = DatabaseSettings(
            database_url=fairline.env["FAIRLINE_DATABASE_URL"], db_statement_seconds=300
        )
        engine = open_engine(settings, process="bench")
        job = fill(engine, ended, waiting, screen)
        engine.dispose()
        fairline.start_scheduler()
        fairline.start_api()
        pids = started.pids()
        api, postgres = pids["api"], pids["postgres"]
        paths = [path.format(job=job) for path in PAGES]
        timings = time_pages(fairline.port, paths, [*api, *postgres], screen)
        loads = time_loads(f"http://127.0.0.1:{fairline.port}", screen)
        postgres = backends(settings)
        uses = [measure_use(api, postgres, seconds, screen, "nobody watches")]
        with viewers(fairline.port, WATCHED) as watching:
            screen.wait("ten viewers come", SETTLE_SECONDS)
            postgres = backends(settings)  # some were opened for the viewers
            uses.append(measure_use(api, postgres, seconds, screen, "ten viewers watch"))
            pushed = sum(viewer.bytes for viewer in watching)
        screen.wait("they have gone", GONE_SECONDS)
        uses.append(measure_use(api, postgres, seconds, screen, "nobody watches again"))
    return judge(timings, loads, uses, pushed, (ended, waiting, seconds))


def backends(settings: DatabaseSettings) -> list[int]:
    """The processes of PostgreSQL that serve the API, and nobody else."""
    engine = open_engine(settings, process="bench")
    found = [row[0] for row in rows(engine, FIND_BACKENDS)]
    engine.dispose()
    return found


def judge(
    timings: Sequence[Timing],
    loads: Mapping[str, Load],
    uses: Sequence[Use],
    pushed: int,
    sizes: tuple[int, int, int],
) -> Report:
    """What was measured against what was promised."""
    ended, waiting, seconds = sizes
    before, watched, after = uses
    idle = Use((before.api + after.api) / 2, (before.postgres + after.postgres) / 2)
    cost = Use(watched.api - idle.api, watched.postgres - idle.postgres)
    barred = [timing for timing in timings if timing.path.partition("?")[0] in BARRED]
    slowest = max(barred, key=lambda timing: timing.p95)
    return Report(
        "console",
        f"The console with {ended:,} ended and {waiting:,} waiting jobs",
        findings=[
            f"The slowest of the overview and the lists of jobs takes {slowest.p95:.0f} ms"
            f" ({slowest.path}, 95 of 100 requests).",
            f"Ten viewers cost {cost.both:.2f} % of a core.",
            f"A browser that has nothing of it loads the overview in {loads['/'].loaded:.0f} ms.",
        ],
        tables=[
            table(
                "Pages, one request after the other",
                {
                    "page": "{.path}",
                    "status": "{.status}",
                    "median": "{.median:.0f} ms",
                    "p95": "{.p95:.0f} ms",
                    "processor": "{.processor:.1f} ms",
                    "size": "{.kilobytes:.0f} kB",
                },
                timings,
            ),
            table(
                "In Chromium, with an empty cache",
                {
                    "page": "{0[0]}",
                    "loaded after": "{0[1].loaded:.0f} ms",
                    "charts drawn after": "{0[1].drawn:.0f} ms",
                },
                loads.items(),
            ),
            table(
                f"Percent of a core, over {seconds} s",
                {
                    "": "{0[0]}",
                    "API": "{0[1].api:.2f}",
                    "PostgreSQL": "{0[1].postgres:.2f}",
                    "both": "{0[1].both:.2f}",
                },
                (
                    ("nobody watches", before),
                    ("ten viewers", watched),
                    ("nobody watches again", after),
                    ("cost of the ten", cost),
                ),
            ),
        ],
        bars=[
            *(
                Bar(f"{each.path}, p95", each.p95, "<=", MOST_MILLISECONDS, " ms")
                for each in barred
            ),
            *(
                Bar(f"{path}, loaded", load.loaded, "<=", MOST_LOAD_MILLISECONDS, " ms")
                for path, load in loads.items()
            ),
            Bar("ten viewers, of a core", cost.both, "<=", MOST_PERCENT, " %"),
            Bar(
                "pages that do not answer 200",
                sum(timing.status != http.client.OK for timing in timings),
                "<=",
                0,
            ),
        ],
        notes=[
            f"Ten viewers were sent {pushed / 1000:.0f} kB in {seconds + SETTLE_SECONDS} s."
            " The API is two processes; of PostgreSQL those backends count that serve them."
        ],
        data={
            "pages": [asdict(timing) for timing in timings],
            "loads": {path: asdict(load) for path, load in loads.items()},
            "percent": {"idle": asdict(idle), "watched": asdict(watched)},
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    asked = options(
        *("make bench-console", __doc__),
        ("--ended", ENDED, "jobs that ended"),
        ("--waiting", WAITING, "in the line"),
        ("--seconds", 30, "of each stretch"),
        NO_FAIL,
        given=arguments,
    )
    console = Console()
    report = run(asked.ended, asked.waiting, asked.seconds, console)
    return report.conclude(console, no_fail=asked.no_fail)


if __name__ == "__main__":
    sys.exit(main())
