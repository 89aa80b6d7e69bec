"""The watchdog beside a hub that does not turn, without a worker process around it."""

from __future__ import annotations

import time

from sqlalchemy import Engine

from tasks.runtime.held import Held
from tasks.runtime.hub import Hub
from tasks.runtime.watchdog import Watchdog
from tests.integration.house import House
from tests.integration.one_worker import one_worker

LEFT = "SELECT extract(epoch FROM lease_expires_at - now())::float8 FROM jobs ORDER BY id"


class Starved(Hub):
    """A hub whose thread gets no processor: it is silent, and nothing of that counts."""

    def __init__(self, silent_since: float, blocker: Held) -> None:
        self.silent_since = silent_since
        self.silent_seconds = self.blocking_seconds = 0.0
        self.blocker = blocker

    def look(self, now: float, elapsed: float) -> None:
        pass


def test_the_leases_of_a_starved_process_are_kept_and_nobody_is_judged(engine: Engine) -> None:
    house = House(engine)
    with one_worker(house) as shop:
        claims = shop.worker.claim(shop.refs(2))
        held = [shop.worker.begin(claim) for claim in claims]
        house.execute("UPDATE jobs SET lease_expires_at = now() + interval '4 seconds'")
        watchdog, now = Watchdog(shop.worker, ["short"], 5.0), time.monotonic()
        watchdog._hub = Starved(now - 1.0, held[0])
        watchdog.look(now, 0.0)
        assert all(left < 5 for (left,) in house.query(LEFT)), "too early to help"
        watchdog.look(now + 5.0, 0.0)
        assert all(left > 5 for (left,) in house.query(LEFT))
        assert watchdog._told == {}
