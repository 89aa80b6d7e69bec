"""How many requests a second the front doors answer: Fairline's, the baseline's, an empty one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import text

from loadtest import closed_loop
from loadtest.closed_loop import Answered, Load
from loadtest.cores import CoreMeter
from loadtest.fairline import Fairline
from loadtest.fleet import Fleet
from loadtest.http_bytes import Request, applications
from loadtest.plain import PlainCelery
from loadtest.samples import Sample

WARM_SECONDS = 2.0
POLLED = 300


def measure(
    fleet: Fleet,
    name: str,
    port: int,
    requests: Sequence[Request],
    expected_status: int,
    connections: int,
    seconds: float,
) -> Sample:
    """Drive one route and note what it did and who used the cores meanwhile."""
    generator = closed_loop.start(
        Load(port, connections, WARM_SECONDS, seconds, requests, expected_status)
    )
    time.sleep(WARM_SECONDS)
    meter = CoreMeter({**fleet.pids(), "generator": [generator.pid]})
    time.sleep(max(0.1, seconds - 0.5))
    cores = meter.read()
    answered = closed_loop.finish(generator)
    return sample_of(f"{name} @{connections}", answered, cores)


def sample_of(name: str, answered: Answered, cores: dict[str, float]) -> Sample:
    """What the generator saw as one line of the report."""
    return Sample(
        name,
        answered.rate,
        answered.p50_ms,
        answered.p99_ms,
        unexpected=sum(answered.unexpected.values()),
        cores=cores,
    )


def accept_fairline(
    fairline: Fairline, connections: Sequence[int], seconds: float, *, poll: bool
) -> list[Sample]:
    """Submissions, with a scheduler and a medium worker at work as in real life; then polling."""
    fairline.start_api()
    fairline.start_scheduler()
    fairline.start_worker("medium")
    fairline.await_ready()
    port = fairline.port
    bodies = applications(500)
    samples = [
        measure(fairline.fleet, "accept: Fairline", port, bodies, 202, count, seconds)
        for count in connections
    ]
    if poll:
        pending, scored, known = polls(fairline)
        for name, requests, status in (
            ("poll: Fairline, pending", pending, 200),
            ("poll: Fairline, scored", scored, 200),
            ("poll: Fairline, 304", known, 304),
        ):
            samples.append(
                measure(
                    fairline.fleet,
                    name,
                    port,
                    requests,
                    status,
                    connections[0],
                    seconds / 2,
                )
            )
    fairline.fleet.stop("api", "worker-medium-1", "scheduler")
    return samples


def polls(fairline: Fairline) -> tuple[list[Request], list[Request], list[Request]]:
    """Requests for applications that wait, that are scored, and that are known already."""
    with fairline.engine() as engine, engine.connect() as connection:
        pending, scored = (
            [
                Request("GET", f"/applications/{row[0]}")
                for row in connection.execute(
                    text(
                        "SELECT id FROM jobs WHERE pool = 'medium' AND status = :status "
                        "ORDER BY id DESC LIMIT :most"
                    ),
                    {"status": status, "most": POLLED},
                )
            ]
            for status in ("queued", "succeeded")
        )
    # Those at the end of the line keep their state while they are asked for.
    etags = [
        closed_loop.ask(fairline.port, request).header("ETag")
        for request in pending[:100]
    ]
    known = [
        Request(request.method, request.path, {"If-None-Match": etag})
        for request, etag in zip(pending, etags, strict=False)
    ]
    return pending, scored, known


def accept_plain(
    plain: PlainCelery, connections: Sequence[int], seconds: float
) -> list[Sample]:
    """The same submissions; no worker runs, which is to the baseline's advantage."""
    plain.start_web()
    samples = []
    for count in connections:
        samples.append(
            measure(
                plain.fleet,
                "accept: baseline",
                plain.port,
                applications(500),
                202,
                count,
                seconds,
            )
        )
        samples.append(
            measure(
                *(plain.fleet, "empty Flask route", plain.port),
                *([Request("GET", "/empty")], 200, count, seconds),
            )
        )
    plain.fleet.stop("plain-web")
    plain.empty_queue()
    return samples
