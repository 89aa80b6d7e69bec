"""Gauges that describe the whole system, observed by the leading scheduler only.

If every process observed them, a collector that adds up processes would count them many times. They
are read as ``/metrics`` reads them; a scheduler that stops leading observes nothing. Counters start
a new series with each leader, at the same height: take rates per series, never sums of heights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from sqlalchemy import Engine

from app.reads.gauges import GaugeReadings, read_gauges, slots_of
from app.telemetry import attributes as names
from app.telemetry.scope import meter_of
from models.jobs.states import TERMINAL
from models.leadership import Leader
from models.pools import POOLS
from models.store.session import connect

OBSERVE_SECONDS = 5.0
#: Older readings are not observed.
STALE_SECONDS = 30.0

Observations = Iterable[Observation]
Instrument = Callable[[GaugeReadings], Observations]


class Observer:
    def __init__(self, meters: MeterProvider, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader
        self._readings: GaugeReadings | None = None
        self._read_at = 0.0
        meter = meter_of(meters)
        for name, unit, instrument, text in GAUGES:
            meter.create_observable_gauge(name, [self._callback(instrument)], unit, text)
        for name, unit, instrument, text in COUNTERS:
            meter.create_observable_counter(name, [self._callback(instrument)], unit, text)

    def run_once(self, now: float) -> int:
        """Read them."""
        with connect(self._engine) as connection:
            self._readings = read_gauges(connection)
        self._read_at = time.monotonic()
        return 0

    def _callback(self, instrument: Instrument) -> Callable[[CallbackOptions], Observations]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            fresh = time.monotonic() - self._read_at < STALE_SECONDS
            if self._readings is not None and fresh and self._leader.epoch is not None:
                yield from instrument(self._readings)

        return observe


def by(attribute: str, values: Mapping[str, float]) -> list[Observation]:
    """An observation for each value of one attribute."""
    return [Observation(value, {attribute: key}) for key, value in values.items()]


def depth(readings: GaugeReadings) -> Observations:
    return by(names.POOL, {pool: readings.counts.get(pool, {}).get("queued", 0) for pool in POOLS})


def oldest(readings: GaugeReadings) -> Observations:
    return by(names.POOL, {pool: readings.queue_seconds.get(pool, 0.0) for pool in POOLS})


def in_flight(readings: GaugeReadings) -> Observations:
    for pool in POOLS:
        for state in ("scheduled", "dispatched", "running"):
            count = readings.counts.get(pool, {}).get(state, 0)
            yield Observation(count, {names.POOL: pool, names.STATE: state})


def ended(readings: GaugeReadings) -> Observations:
    for pool, counts in readings.counts.items():
        for state in TERMINAL:
            count = counts.get(state.value, 0)
            yield Observation(count, {names.POOL: pool, names.OUTCOME: state.value})


def slots(readings: GaugeReadings) -> Observations:
    for pool, (size, busy) in slots_of(readings, POOLS).items():
        yield Observation(busy, {names.POOL: pool, names.STATE: "busy"})
        yield Observation(max(0, size - busy), {names.POOL: pool, names.STATE: "free"})


def utilization(readings: GaugeReadings) -> Observations:
    sizes = slots_of(readings, POOLS).items()
    return by(names.POOL, {pool: min(1.0, busy / size) for pool, (size, busy) in sizes if size})


#: Name, unit, values and description.
GAUGES: tuple[tuple[str, str, Instrument, str], ...] = (
    ("fairline.queue.depth", "{job}", depth, "Queued jobs."),
    ("fairline.queue.oldest_age", "s", oldest, "Age of the oldest queued job."),
    ("fairline.jobs.in_flight", "{job}", in_flight, "Jobs scheduled, dispatched or running."),
    ("fairline.dead_letters", "{job}", lambda it: by(names.JOB_TYPE, it.dead_letters), "By type."),
    ("fairline.slots", "{slot}", slots, "Slots of live workers."),
    ("fairline.slot.utilization", "1", utilization, "Share of the slots in use."),
    ("fairline.workers.desired", "{worker}", lambda it: by(names.POOL, it.desired), "Desired."),
    ("fairline.workers.living", "{worker}", lambda it: by(names.POOL, it.living), "Live."),
)
COUNTERS: tuple[tuple[str, str, Instrument, str], ...] = (
    ("fairline.jobs.admitted", "{job}", lambda it: by(names.POOL, it.admitted()), "Admitted."),
    ("fairline.jobs.ended", "{job}", ended, "Jobs ended, by outcome."),
    ("fairline.refusals", "{request}", lambda it: by(names.CODE, it.refused), "By code."),
)
