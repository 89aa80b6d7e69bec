"""``/metrics`` for Prometheus. Gauges that describe the system come from the database, so
every API process tells the same.

A page is told again for a second, and who asks while one is read gets that one: anybody may
ask, and a flood of them costs a process one read a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flask import Blueprint, Response, current_app
from flask.blueprints import BlueprintSetupState
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.api.auth.access import Access, open_to
from app.api.http.state import read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.services import current_services
from app.config import settings
from app.policy.scaling import policy_of
from app.reads.gauges import DEAD_LETTERS_COUNTED, STATES, GaugeReadings, read_gauges, slots_of
from app.reads.single_flight import SingleFlight
from models.jobs.states import TERMINAL
from models.pools import POOLS
from models.store.errors import StateStoreUnavailable

metrics = Blueprint("metrics", __name__)

UNSAID: Mapping[str, float] = {}


@metrics.record_once
def _keep_page(state: BlueprintSetupState) -> None:
    state.app.extensions["fairline_metrics"] = SingleFlight()


@metrics.get("/metrics")
@open_to(Access.PUBLIC)
@described(
    "Metrics for Prometheus",
    DeclaredResponse(200, "Text format 0.0.4.", {"type": "string"}, content_type="text/plain"),
    query=None,
    errors=(StateStoreUnavailable,),
)
def get_metrics() -> Response:
    page: SingleFlight = current_app.extensions["fairline_metrics"]
    return Response(page.read(read_page), content_type="text/plain; version=0.0.4")


def read_page() -> str:
    """The system as it is now."""
    with read_state() as connection:
        return tell(read_gauges(connection), current_services().served_pools, objectives())


def objectives() -> dict[str, float]:
    """Seconds that nobody should wait longer in a pool: beyond, it gets more workers."""
    changes = settings().scale_policy
    return {pool: policy_of(pool, {}, {}, changes).up_seconds for pool in POOLS}


@dataclass(frozen=True, slots=True)
class Told:
    """A collector of these metrics alone; the library's own registry adds those of the process."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def tell(
    readings: GaugeReadings, served_pools: Iterable[str], most_seconds: Mapping[str, float] = UNSAID
) -> str:
    """The readings in the Prometheus text format."""
    pools = sorted({*served_pools, *readings.counts})
    metrics = chain(
        jobs(readings, pools, most_seconds),
        workers(readings, pools),
        troubles(readings, pools),
        durations(readings),
        recurring(readings),
        quotas(readings),
    )
    return generate_latest(Told(metrics)).decode()


def family(name: str, text: str, samples: Iterable[tuple[Any, ...]]) -> Metric:
    """A metric by its name and labels, as ``name{label,label}``; what ends in _total counts.

    A sample is the values of its labels and, last, its own.
    """
    name, _, labels = name.rstrip("}").partition("{")
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    made = kind(name, text, labels=labels.split(","))
    for *values, value in samples:
        made.add_metric(values, value)
    return made


def jobs(
    readings: GaugeReadings, pools: Sequence[str], most_seconds: Mapping[str, float]
) -> Iterator[Metric]:
    """Where the jobs are."""
    counts = {pool: readings.counts.get(pool, {}) for pool in pools}
    yield family(
        "fairline_queue_depth{pool}",
        "Jobs waiting in the line.",
        ((pool, by_state.get("queued", 0)) for pool, by_state in counts.items()),
    )
    yield family(
        "fairline_jobs_in_flight{pool,state}",
        "Jobs at the broker or running.",
        (
            (pool, state, by_state.get(state, 0))
            for pool, by_state in counts.items()
            for state in ("scheduled", "dispatched", "running")
        ),
    )
    yield family(
        "fairline_oldest_job_age_seconds{pool}",
        "Age of the oldest in the line; with thousands of tenants and priorities, at least.",
        ((pool, round(readings.line_seconds.get(pool, 0.0), 3)) for pool in pools),
    )
    yield family(
        "fairline_wait_objective_seconds{pool}",
        "The age of the oldest beyond which a pool gets more workers.",
        ((pool, most_seconds[pool]) for pool in pools if pool in most_seconds),
    )
    yield family(
        "fairline_oldest_due_unpromoted_age_seconds{pool}",
        "How long the oldest due job waits to join the line.",
        ((pool, round(readings.due_seconds.get(pool, 0.0), 3)) for pool in pools),
    )
    yield family(
        "fairline_jobs_admitted_total{pool}",
        "Jobs submitted or replayed.",
        ((pool, readings.admitted().get(pool, 0)) for pool in pools),
    )
    yield family(
        "fairline_jobs_total{pool,outcome}",
        "Jobs ended, by outcome.",
        (
            (pool, state, by_state.get(state, 0))
            for pool, by_state in counts.items()
            for state in STATES
            if state in TERMINAL
        ),
    )
    yield family(
        "fairline_refusals_total{code}",
        "Submissions that were refused, by the code of the reason.",
        readings.refused.items(),
    )
    yield family(
        "fairline_dead_letters{type}",
        f"Dead letters; no more than {DEAD_LETTERS_COUNTED} in all are counted.",
        readings.dead_letters.items(),
    )


def workers(readings: GaugeReadings, pools: Sequence[str]) -> Iterator[Metric]:
    """Who could run them."""
    slots = slots_of(readings, pools)
    yield family(
        "fairline_pool_slots{pool,state}",
        "Slots of living workers.",
        (
            (pool, state, value)
            for pool, (size, busy) in slots.items()
            for state, value in (("busy", busy), ("free", max(0, size - busy)))
        ),
    )
    yield family(
        "fairline_desired_workers{pool}",
        "Workers that a pool should have.",
        ((pool, n) for pool, n in sorted(readings.desired.items()) if pool in slots),
    )
    yield family(
        "fairline_living_workers{pool}",
        "Workers that a pool has, as the autoscaler counts them.",
        ((pool, n) for pool, n in sorted(readings.living.items()) if pool in slots),
    )
    yield family(
        "fairline_db_pool{process,state}",
        "Connections of a process; waiting is the peak since its last heartbeat.",
        (
            (process.name, state, value)
            for process in readings.processes
            for state, value in (
                ("size", process.db_size),
                ("in_use", process.db_in_use),
                ("waiting", process.db_waiters),
            )
        ),
    )


def troubles(readings: GaugeReadings, pools: Sequence[str]) -> Iterator[Metric]:
    """What fails, and what is held back for it."""
    trouble = readings.trouble
    yield family(
        "fairline_circuit_open{dependency}",
        "1 while a dependency is not called, 0.5 while it is asked whether it is back.",
        trouble.get("circuit", {}).items(),
    )
    yield family(
        "fairline_job_type_quarantined{type}",
        "1 for a job type that mostly fails and gets fewer tries.",
        trouble.get("quarantine", {}).items(),
    )
    throttled = trouble.get("throttle", {})
    yield family(
        "fairline_throttled_tenants{pool}",
        "Tenants that run one job at a time because theirs kill workers.",
        ((pool, throttled.get(pool, 0)) for pool in pools),
    )
    yield family(
        "fairline_pool_violations{type}",
        "Runs of the last hour that were longer than the pool's bound.",
        trouble.get("violation", {}).items(),
    )
    yield GaugeMetricFamily(
        "fairline_runs",
        "Runs that gave a result or failed in the last ten minutes.",
        trouble.get("runs", {}).get("", 0),
    )
    yield GaugeMetricFamily(
        "fairline_retries",
        "Retries granted in the last ten minutes.",
        trouble.get("retry", {}).get("", 0),
    )
    yield family(
        "fairline_wait_prediction_error_ratio{pool}",
        "Mean error of predicted starts in the last hour, as a part of the wait.",
        trouble.get("forecast_error", {}).items(),
    )
    yield family(
        "fairline_wait_predictions{pool}",
        "Predictions that this is the mean of.",
        trouble.get("forecast", {}).items(),
    )
    yield GaugeMetricFamily(
        "fairline_express_degraded",
        "1 while no scheduler lives and an API process dispatches, without fair share.",
        trouble.get("degraded", {}).get("", 0),
    )


def durations(readings: GaugeReadings) -> Iterator[Metric]:
    """How long job types take, and which were moved for it."""
    yield family(
        "fairline_job_type_p95_seconds{type}",
        "What 95 in 100 recent runs of a job type do not exceed.",
        ((known.type, round(known.p95_seconds, 4)) for known in readings.types),
    )
    yield family(
        "fairline_job_type_moved{type,from,to}",
        "1 for a job type that goes to another pool than the declared one.",
        (
            (known.type, known.declared_pool, known.pool, 1)
            for known in readings.types
            if known.pool != known.declared_pool
        ),
    )


def recurring(readings: GaugeReadings) -> Iterator[Metric]:
    """Schedules and their ticks."""
    yield family(
        "fairline_schedules{state}",
        "Schedules; one that has ended has no further tick.",
        ((state, readings.schedules.get(state, 0)) for state in ("active", "paused", "ended")),
    )
    yield GaugeMetricFamily(
        "fairline_oldest_due_tick_age_seconds",
        "How long the oldest due tick of a schedule waits to become a job.",
        round(readings.tick_seconds, 3),
    )


def quotas(readings: GaugeReadings) -> Iterator[Metric]:
    """What dependencies take, and what they refused."""
    yield family(
        "fairline_quota_per_minute{dependency,kind}",
        "What a dependency takes in a minute, declared or learned.",
        ((quota.dependency, quota.kind, quota.most) for quota in readings.quotas),
    )
    yield family(
        "fairline_quota_remaining{dependency,kind}",
        "What the last answer of a dependency said is left.",
        (
            (quota.dependency, quota.kind, quota.remaining)
            for quota in readings.quotas
            if quota.remaining is not None
        ),
    )
    yield family(
        "fairline_quota_closed{dependency}",
        "1 while a dependency that refused is not called.",
        ((tap.dependency, int(tap.closed or 0)) for tap in readings.taps),
    )
    yield family(
        "fairline_quota_refused_total{dependency}",
        "Calls that a dependency refused for its quota.",
        ((tap.dependency, tap.refused) for tap in readings.taps),
    )
