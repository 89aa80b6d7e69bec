"""``make bench-console``: what the console costs with a million jobs in the tables.

Every page is requested some times, and some are loaded in a real browser. Then ten viewers watch
pages over server-sent events; their cost is the CPU time of the API and of PostgreSQL beyond a
time without viewers.
"""

from __future__ import annotations

import argparse
import http.client
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Self
from urllib.parse import quote

from rich.console import Console

from loadtest.console_rows import Load, fill, time_loads
from loadtest.figures import MACHINE, CoreMeter, cpu_seconds, percentile
from loadtest.fleet import Fairline, fleet, rows
from loadtest.report import Bar, Report, Screen, command, table

ENDED, WAITING = 1_000_000, 100_000
REQUESTS = 20
#: The first compile the template and meet a cold connection.
WARM_REQUESTS = 2
#: Viewers connect at different moments, and the first event is not the usual one.
SETTLE_SECONDS = 8
#: A closed connection is noticed at the second keep-alive.
GONE_SECONDS = 35
MOST_MILLISECONDS = 300.0
MOST_PERCENT = 2.0
FIND_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, 'api@')"
MOST_LOAD_MILLISECONDS = 1_000.0

#: What is requested; the overview and the list of jobs have a bar.
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


#: Percent of a core, by part.
Use = dict[str, float]


def time_pages(
    port: int, paths: Sequence[str], pids: Sequence[int], screen: Screen
) -> list[Timing]:
    """Every page, one request after the other on one connection."""
    timings = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for number in screen.steps("requesting pages", len(paths)):
        path, status, size, used = paths[number], 0, 0, 0.0
        milliseconds: list[float] = []
        for request in range(WARM_REQUESTS + REQUESTS):
            if request == WARM_REQUESTS:
                milliseconds, used = [], cpu_seconds(pids)
            began = time.perf_counter()
            connection.request("GET", path, headers={"Accept": "text/html"})
            answer = connection.getresponse()
            size, status = len(answer.read()), answer.status
            milliseconds.append((time.perf_counter() - began) * 1000)
        processor = (cpu_seconds(pids) - used) / REQUESTS * 1000
        times = (median(milliseconds), percentile(milliseconds, 0.95), processor)
        timings.append(Timing(path, status, *times, size / 1000))
    connection.close()
    return timings


class Viewer(threading.Thread):
    """A browser with a page open: reads its event stream."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._wire = socket.create_connection(("127.0.0.1", port), timeout=60)
        target = f"/console/events?page={quote(path, safe='')}"
        self._wire.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        #: What was received.
        self.bytes = self.events = 0

    def run(self) -> None:
        while chunk := self._wire.recv(65_536):
            self.bytes += len(chunk)
            self.events += chunk.count(b"event: parts")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.shutdown(socket.SHUT_RDWR)
        self.join(5.0)
        self._wire.close()
        if not self.events:
            raise RuntimeError(f"no event for the viewer of {self._path}")


def measure_use(parts: Mapping[str, Sequence[int]], seconds: int, screen: Screen, name: str) -> Use:
    """What each part uses for so long."""
    meter = CoreMeter(parts)
    screen.wait(name, seconds)
    return {part: 100 * cores for part, cores in meter.read().items() if part != MACHINE}


def run(asked: argparse.Namespace, console: Console) -> Report:
    ended, waiting, seconds = asked.ended, asked.waiting, asked.seconds
    with Screen(console) as screen, fleet("console") as started:
        pools = "short,medium,long"
        keep = {"keep_finished_days": "30", "keep_dead_days": "30"}
        fairline = Fairline(started, served_pools=pools, console_open="true", **keep)
        with fairline.engine(300) as engine:
            job = fill(engine, ended, waiting, screen)
        fairline.start_scheduler()
        fairline.start_api()
        pids = started.pids()
        paths = [path.format(job=job) for path in PAGES]
        timings = time_pages(fairline.port, paths, [*pids["api"], *pids["postgres"]], screen)
        loads = time_loads(fairline.url, screen)

        def parts() -> dict[str, list[int]]:
            """The API, and the PostgreSQL backends that serve it."""
            with fairline.engine() as engine:
                backends = [row.pid for row in rows(engine, FIND_BACKENDS)]
            return {"API": pids["api"], "PostgreSQL": backends}

        uses = [measure_use(parts(), seconds, screen, "without viewers")]
        with ExitStack() as stack:
            watching = [stack.enter_context(Viewer(fairline.port, path)) for path in WATCHED]
            screen.wait("ten viewers connect", SETTLE_SECONDS)
            watched = parts()  # some backends were started for the viewers
            uses.append(measure_use(watched, seconds, screen, "ten viewers"))
            pushed = sum(viewer.bytes for viewer in watching)
        screen.wait("viewers disconnect", GONE_SECONDS)
        uses.append(measure_use(watched, seconds, screen, "without viewers again"))
    return judge(timings, loads, uses, pushed, (ended, waiting, seconds))


def judge(
    timings: Sequence[Timing],
    loads: Mapping[str, Load],
    uses: Sequence[Use],
    pushed: int,
    sizes: tuple[int, int, int],
) -> Report:
    ended, waiting, seconds = sizes
    before, watched, after = uses
    idle = {part: fmean((before[part], after[part])) for part in before}
    cost = {part: watched[part] - idle[part] for part in before}
    viewers_cost = sum(cost.values())
    barred = [timing for timing in timings if timing.path.partition("?")[0] in BARRED]
    slowest = max(barred, key=lambda timing: timing.p95)
    return Report(
        "console",
        f"The console with {ended:,} ended and {waiting:,} waiting jobs",
        findings=[
            f"The slowest of the overview and the lists of jobs takes {slowest.p95:.0f} ms"
            f" ({slowest.path}, 95 of 100 requests).",
            f"Ten viewers cost {viewers_cost:.2f} % of a core.",
            f"A browser with an empty cache loads the overview in {loads['/'].loaded:.0f} ms.",
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
                    "API": "{0[1][API]:.2f}",
                    "PostgreSQL": "{0[1][PostgreSQL]:.2f}",
                    "both": lambda row: f"{sum(row[1].values()):.2f}",
                },
                {
                    "without viewers": before,
                    "ten viewers": watched,
                    "without viewers again": after,
                    "cost of the ten": cost,
                }.items(),
            ),
        ],
        bars=[
            *(Bar(f"{o.path}, p95", o.p95, "<=", MOST_MILLISECONDS, " ms") for o in barred),
            *(
                Bar(f"{path}, loaded", load.loaded, "<=", MOST_LOAD_MILLISECONDS, " ms")
                for path, load in loads.items()
            ),
            Bar("ten viewers, of a core", viewers_cost, "<=", MOST_PERCENT, " %"),
            Bar("pages that do not answer 200", sum(o.status != 200 for o in timings), "<=", 0),
        ],
        notes=[
            f"Ten viewers were sent {pushed / 1000:.0f} kB in {seconds + SETTLE_SECONDS} s."
            " The API is two processes; of PostgreSQL those backends count that serve them."
        ],
        data={
            "pages": [asdict(timing) for timing in timings],
            "loads": {path: asdict(load) for path, load in loads.items()},
            "percent": {"idle": idle, "watched": watched},
        },
    )


FLAGS = (
    ("--ended", ENDED, "jobs that ended"),
    ("--waiting", WAITING, "jobs in the queue"),
    ("--seconds", 30, "of each measurement of viewers"),
)

if __name__ == "__main__":
    sys.exit(command("make bench-console", __doc__, run, *FLAGS))
