"""How many requests a second the front doors answer: Fairline's, the baseline's, an empty one.

All servers run all the time and take turns under load in short slices. Fairline is measured with
its scheduler and a medium worker at work, as in real life; while the baseline has its turn, these
two are frozen. The baseline's worker does not run at all, which is to the baseline's advantage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from loadtest import closed_loop
from loadtest.closed_loop import Load
from loadtest.cores import CoreMeter
from loadtest.fairline import Fairline
from loadtest.fleet import Fleet
from loadtest.http_bytes import Request, applications
from loadtest.plain import PlainCelery
from loadtest.samples import Sample

WARM_SECONDS = 1.0
#: A poller's route gets a shorter slice than a submitter's.
POLL_SHARE = 0.5
POLLED = 300
KNOWN = 50
BACKGROUND = ("scheduler", "worker-medium-1")


class FrontDoors:
    """The servers, ready to be measured in turns."""

    def __init__(self, fairline: Fairline, plain: PlainCelery, seconds: float) -> None:
        self._fairline = fairline
        self._plain = plain
        self._fleet = fairline.fleet
        self._seconds = seconds
        self._bodies = applications(500)

    @contextmanager
    def open(self) -> Iterator[None]:
        """All of them running."""
        self._plain.start_web()
        self._fairline.start_api()
        self._fairline.start_scheduler()
        self._fairline.start_worker("medium")
        self._fairline.await_ready()
        try:
            yield
        finally:
            self._fleet.stop("api", "worker-medium-1", "scheduler", "plain-web")
            self._plain.empty_queue()

    def take_turns(self, connections: int, *, poll: bool) -> list[Sample]:
        """One round at this number of connections."""
        samples = [self._slice("accept: Fairline", self._bodies, 202, connections)]
        if poll:
            samples += self._poll(connections)
        with self._fleet.frozen(*BACKGROUND):
            samples += [
                self._slice("accept: baseline", self._bodies, 202, connections, plain=True),
                self._slice(
                    "empty Flask route", [Request("GET", "/empty")], 200, connections, plain=True
                ),
            ]
            self._plain.empty_queue()
        self._fairline.await_ready()
        return samples

    def _slice(
        self,
        name: str,
        requests: Sequence[Request],
        status: int,
        connections: int,
        *,
        plain: bool = False,
        share: float = 1.0,
    ) -> Sample:
        port = self._plain.port if plain else self._fairline.port
        warm = min(WARM_SECONDS, self._seconds)
        load = Load(port, connections, warm, share * self._seconds, requests, status)
        return measure(self._fleet, f"{name} @{connections}", load)

    def _poll(self, connections: int) -> list[Sample]:
        pending, scored, known = polls(self._fairline)
        return [
            self._slice(name, requests, status, connections, share=POLL_SHARE)
            for name, requests, status in (
                ("poll: Fairline, pending", pending, 200),
                ("poll: Fairline, scored", scored, 200),
                ("poll: Fairline, 304", known, 304),
            )
            if requests
        ]


def measure(fleet: Fleet, name: str, load: Load) -> Sample:
    """Drive one route and note what it did and who used the cores meanwhile."""
    generator = closed_loop.start(load)
    time.sleep(load.start_seconds)
    meter = CoreMeter({**fleet.pids(), "generator": [generator.pid]})
    time.sleep(max(0.1, load.seconds - 0.3))
    cores = meter.read()
    answered = closed_loop.finish(generator)
    return Sample(
        name,
        answered.rate,
        answered.p50_ms,
        answered.p99_ms,
        unexpected=sum(answered.unexpected.values()),
        cores=cores,
    )


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
    return pending, scored, known_polls(fairline.port)


def known_polls(port: int) -> list[Request]:
    """Requests of somebody who knows the answer already.

    For applications that are due in an hour: they keep their state while they are asked for.
    """
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    asked = []
    for request in applications(KNOWN, prefix="Later"):
        body = json.dumps({**json.loads(request.body), "execute_at": due})
        accepted = closed_loop.ask(port, replace(request, body=body))
        path = accepted.header("Location")
        tag = closed_loop.ask(port, Request("GET", path)).header("ETag")
        asked.append(Request("GET", path, {"If-None-Match": tag}))
    return asked
