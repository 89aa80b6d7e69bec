"""Gauges that describe the whole system. The leading scheduler alone observes them.

Every process could read them from the tables, and a collector that adds up what processes say
would then count them many times. They are read as ``/metrics`` reads them, by a role of the
leader's; who stops leading falls silent.

Counts of the tables go on where the last leader left off. They begin a new series with each
leader, of the same height: take rates of each, and never the sum of their heights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from sqlalchemy import Engine

from app.reads.gauges import GaugeReadings, read_gauges, slots_of
from app.telemetry import attributes as names
from models.jobs.states import TERMINAL
from models.leadership import Leader
from models.pools import POOLS
from models.store.session import connect

OBSERVE_SECONDS = 5.0
#: What was read before is no news after this.
STALE_SECONDS = 30.0

Told = Iterator[Observation]
Telling = Callable[[GaugeReadings], Told]
Observing = Callable[[CallbackOptions], Iterable[Observation]]


class Observer:
    """A role: reads the tables for the gauges."""

    def __init__(self, meters: MeterProvider, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader
        self._readings: GaugeReadings | None = None
        self._read_at = 0.0
        create_instruments(meters, self._tell)

    def run_once(self, now: float) -> int:
        """Read them."""
        with connect(self._engine) as connection:
            self._readings = read_gauges(connection)
        self._read_at = time.monotonic()
        return 0

    def _tell(self, told: Telling) -> Observing:
        def observe(_: CallbackOptions) -> Told:
            fresh = time.monotonic() - self._read_at < STALE_SECONDS
            if self._readings is not None and fresh and self._leader.epoch is not None:
                yield from told(self._readings)

        return observe


def create_instruments(meters: MeterProvider, tell: Callable[[Telling], Observing]) -> None:
    """The gauges and counters, each with how it is told."""
    meter = meters.get_meter("fairline")
    gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
    for make, name, unit, told, text in (
        (gauge, "fairline.queue.depth", "{job}", depth, "Jobs waiting in the queue."),
        (gauge, "fairline.queue.oldest_age", "s", oldest, "Age of the oldest in the queue."),
        (gauge, "fairline.jobs.in_flight", "{job}", in_flight, "Put off, dispatched, running."),
        (counter, "fairline.jobs.admitted", "{job}", admitted, "Jobs submitted or replayed."),
        (counter, "fairline.jobs.ended", "{job}", ended, "Jobs ended, by outcome."),
        (gauge, "fairline.dead_letters", "{job}", dead_letters, "Dead letters by job type."),
        (counter, "fairline.refusals", "{submission}", refusals, "Submissions that were refused."),
        (gauge, "fairline.slots", "{slot}", slots, "Slots of living workers."),
        (gauge, "fairline.slot.utilization", "1", utilization, "Share of the slots in use."),
        (gauge, "fairline.workers.desired", "{worker}", desired, "Workers a pool should have."),
        (gauge, "fairline.workers.living", "{worker}", living, "Workers a pool has."),
    ):
        make(name, [tell(told)], unit, text)


def depth(readings: GaugeReadings) -> Told:
    for pool in POOLS:
        yield of_pool(pool, readings.counts.get(pool, {}).get("queued", 0))


def oldest(readings: GaugeReadings) -> Told:
    for pool in POOLS:
        yield of_pool(pool, readings.line_seconds.get(pool, 0.0))


def in_flight(readings: GaugeReadings) -> Told:
    for pool in POOLS:
        for state in ("scheduled", "dispatched", "running"):
            count = readings.counts.get(pool, {}).get(state, 0)
            yield Observation(count, {names.POOL: pool, names.STATE: state})


def admitted(readings: GaugeReadings) -> Told:
    for pool, count in readings.admitted().items():
        yield of_pool(pool, count)


def ended(readings: GaugeReadings) -> Told:
    for pool, counts in readings.counts.items():
        for state in TERMINAL:
            count = counts.get(state.value, 0)
            yield Observation(count, {names.POOL: pool, names.OUTCOME: state.value})


def dead_letters(readings: GaugeReadings) -> Told:
    for job_type, count in readings.dead_letters.items():
        yield Observation(count, {names.JOB_TYPE: job_type})


def refusals(readings: GaugeReadings) -> Told:
    for code, count in readings.refused.items():
        yield Observation(count, {names.CODE: code})


def slots(readings: GaugeReadings) -> Told:
    for pool, (size, busy) in slots_of(readings, POOLS).items():
        yield Observation(busy, {names.POOL: pool, names.STATE: "busy"})
        yield Observation(max(0, size - busy), {names.POOL: pool, names.STATE: "free"})


def utilization(readings: GaugeReadings) -> Told:
    for pool, (size, busy) in slots_of(readings, POOLS).items():
        if size:
            yield of_pool(pool, min(1.0, busy / size))


def desired(readings: GaugeReadings) -> Told:
    for pool, workers in readings.desired.items():
        yield of_pool(pool, workers)


def living(readings: GaugeReadings) -> Told:
    for pool, workers in readings.living.items():
        yield of_pool(pool, workers)


def of_pool(pool: str, value: float) -> Observation:
    """An observation of one pool."""
    return Observation(value, {names.POOL: pool})
