"""``/metrics`` for Prometheus. Gauges about the system come from the database, so every API process
reports the same.

A page is cached for a second, and concurrent requests share one read: the route is public, and a
flood of requests costs a process one read per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, current_app
from flask.blueprints import BlueprintSetupState
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.api.http.state import read_state
from app.api.openapi.declared import Returns, for_anyone
from app.api.services import current_services
from app.config import settings
from app.policy.fairshare import Tier
from app.policy.scaling import policy_of
from app.policy.tier_limits import TIER_LIMITS
from app.reads.gauges import DEAD_LETTERS_COUNTED, STATES, GaugeReadings, read_gauges, slots_of
from app.reads.single_flight import SingleFlight
from models.jobs.states import TERMINAL
from models.pools import POOLS
from models.store.errors import StateStoreUnavailable

metrics = Blueprint("metrics", __name__)

NO_OBJECTIVES: Mapping[str, float] = {}
NO_RATES: Mapping[str, float | None] = {}

#: Every metric in the order of the page, with its labels and its help; ``_total`` are counters.
METRICS = {
    # Jobs.
    "fairline_queue_depth{pool}": "Jobs waiting in the queue.",
    "fairline_jobs_in_flight{pool,state}": "Jobs scheduled, at the broker or running.",
    "fairline_oldest_job_age_seconds{pool}": "Age of the oldest queued job; with thousands of"
    " tenants and priorities, at least.",
    "fairline_wait_objective_seconds{pool}": "Wait above which a pool gets more workers.",
    "fairline_oldest_due_unpromoted_age_seconds{pool}": "Age of the oldest due job not yet queued.",
    "fairline_jobs_admitted_total{pool}": "Jobs submitted or replayed.",
    "fairline_jobs_total{pool,outcome}": "Jobs ended, by outcome.",
    "fairline_refusals_total{code}": "Submissions rejected, by error code.",
    "fairline_dead_letters{type}": f"Dead letters; at most {DEAD_LETTERS_COUNTED} are counted.",
    # Limits.
    "fairline_tier_submit_per_second{tier}": "Submissions per second that a tenant of a tier may"
    " make by default; a tier that is missing has no limit.",
    "fairline_tier_in_flight_limit{tier,pool}": "Jobs in flight that a tenant of a tier may have by"
    " default.",
    # Workers.
    "fairline_pool_slots{pool,state}": "Slots of live workers.",
    "fairline_desired_workers{pool}": "Workers that a pool should have.",
    "fairline_living_workers{pool}": "Workers that a pool has, as counted by the autoscaler.",
    "fairline_db_pool{process,state}": "Database connections of a process; waiting is the peak"
    " since its last heartbeat.",
    # The database.
    "fairline_oldest_snapshot_seconds": "Age of the oldest open transaction of the database; dead"
    " rows cannot be removed meanwhile.",
    "fairline_oldest_snapshot_transactions": "Age of the oldest snapshot in transactions, also of"
    " replication slots and standbys.",
    # Failures and restrictions.
    "fairline_circuit_open{dependency}": "1 while a dependency is not called, 0.5 while probed.",
    "fairline_job_type_quarantined{type}": "1 for a mostly failing job type, with fewer attempts.",
    "fairline_throttled_tenants{pool}": "Tenants whose jobs kill workers and run one at a time.",
    "fairline_pool_violations{type}": "Runs in the last hour that exceeded the pool's limit.",
    "fairline_runs": "Runs that succeeded or failed in the last ten minutes.",
    "fairline_retries": "Retries granted in the last ten minutes.",
    "fairline_wait_prediction_error_ratio{pool}": "Mean error of predicted starts in the last"
    " hour, relative to the wait.",
    "fairline_wait_predictions{pool}": "Number of predictions in that mean.",
    "fairline_express_degraded": "1 while there is no scheduler and an API process dispatches,"
    " without fair share.",
    # Durations of job types.
    "fairline_job_type_p95_seconds{type}": "95th percentile of recent run times of a job type.",
    "fairline_job_type_moved{type,from,to}": "1 for a job type moved away from its declared pool.",
    # Schedules.
    "fairline_schedules{state}": "Schedules; one that has ended has no further ticks.",
    "fairline_oldest_due_tick_age_seconds": "Age of the oldest due tick that is not yet a job.",
    # Quotas of dependencies.
    "fairline_quota_per_minute{dependency,kind}": "What a dependency accepts per minute, declared"
    " or learned.",
    "fairline_quota_remaining{dependency,kind}": "Remaining quota in the last response.",
    "fairline_quota_closed{dependency}": "1 while a dependency that rejected calls is not called.",
    "fairline_quota_refused_total{dependency}": "Calls rejected because of a dependency's quota.",
}

#: Columns of ``processes`` by state of the connections.
DB_POOL = {"size": "db_size", "in_use": "db_in_use", "waiting": "db_waiters"}

#: The values of its labels and, last, the sample's own.
Sample = tuple[Any, ...]


@metrics.record_once
def _keep_page(state: BlueprintSetupState) -> None:
    state.app.extensions["fairline_metrics"] = SingleFlight()


@metrics.get("/metrics")
@for_anyone(
    "Metrics for Prometheus",
    Returns(200, {"type": "string"}, (), "Text format 0.0.4.", "text/plain"),
    query=None,
    errors=(StateStoreUnavailable,),
)
def get_metrics() -> Response:
    page: SingleFlight = current_app.extensions["fairline_metrics"]
    return Response(page.read(read_page), content_type="text/plain; version=0.0.4")


def read_page() -> str:
    """The current metrics."""
    with read_state() as connection:
        readings = read_gauges(connection)
    services = current_services()
    rates = {tier.value: services.gate.usual_rate(tier) for tier in Tier}
    return exposition(readings, services.served_pools, objectives(), rates)


def objectives() -> dict[str, float]:
    """By pool, the wait in seconds above which it gets more workers."""
    changes = settings().scale_policy
    return {pool: policy_of(pool, {}, {}, changes).up_seconds for pool in POOLS}


@dataclass(frozen=True, slots=True)
class Collected:
    """A collector of these metrics only; the library's registry adds those of the process."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def exposition(
    readings: GaugeReadings,
    served_pools: Iterable[str],
    most_seconds: Mapping[str, float] = NO_OBJECTIVES,
    rates: Mapping[str, float | None] = NO_RATES,
) -> str:
    """The readings in the Prometheus text format."""
    pools = sorted({*served_pools, *readings.counts})
    samples = {
        **job_samples(readings, pools, most_seconds),
        **limit_samples(rates, pools),
        **worker_samples(readings, pools),
        **trouble_samples(readings.trouble, pools),
        **other_samples(readings),
    }
    families = (family(name, text, samples) for name, text in METRICS.items())
    return generate_latest(Collected(families)).decode()


def family(name: str, text: str, samples: Mapping[str, Iterable[Sample]]) -> Metric:
    """One metric with its samples."""
    name, _, labels = name.rstrip("}").partition("{")
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    made = kind(name, text, labels=labels.split(",") if labels else ())
    for *values, value in samples[name]:
        made.add_metric(values, value)
    return made


def job_samples(
    readings: GaugeReadings, pools: Sequence[str], most_seconds: Mapping[str, float]
) -> dict[str, Iterable[Sample]]:
    """Where the jobs are."""
    counts = {pool: readings.counts.get(pool, {}) for pool in pools}

    def by_state(states: Iterable[str]) -> list[Sample]:
        return [(pool, state, counts[pool].get(state, 0)) for pool in pools for state in states]

    def ages(seconds: Mapping[str, float]) -> list[Sample]:
        return [(pool, round(seconds.get(pool, 0.0), 3)) for pool in pools]

    return {
        "fairline_queue_depth": [(pool, counts[pool].get("queued", 0)) for pool in pools],
        "fairline_jobs_in_flight": by_state(("scheduled", "dispatched", "running")),
        "fairline_oldest_job_age_seconds": ages(readings.queue_seconds),
        "fairline_wait_objective_seconds": [
            (pool, most_seconds[pool]) for pool in pools if pool in most_seconds
        ],
        "fairline_oldest_due_unpromoted_age_seconds": ages(readings.due_seconds),
        "fairline_jobs_admitted_total": [
            (pool, readings.admitted().get(pool, 0)) for pool in pools
        ],
        "fairline_jobs_total": by_state([state for state in STATES if state in TERMINAL]),
        "fairline_refusals_total": readings.refused.items(),
        "fairline_dead_letters": readings.dead_letters.items(),
    }


def limit_samples(
    rates: Mapping[str, float | None], pools: Sequence[str]
) -> dict[str, Iterable[Sample]]:
    """What tenants of each tier may do by default."""
    return {
        "fairline_tier_submit_per_second": [(tier, rate) for tier, rate in rates.items() if rate],
        "fairline_tier_in_flight_limit": [
            (tier.value, pool, cap)
            for tier, limits in TIER_LIMITS.items()
            for pool in pools
            if (cap := limits.cap(pool)) is not None
        ],
    }


def worker_samples(readings: GaugeReadings, pools: Sequence[str]) -> dict[str, Iterable[Sample]]:
    """Slots, workers and database connections."""
    slots = slots_of(readings, pools)

    def served(workers: Mapping[str, int]) -> list[Sample]:
        return [(pool, count) for pool, count in sorted(workers.items()) if pool in slots]

    return {
        "fairline_pool_slots": [
            (pool, state, value)
            for pool, (size, busy) in slots.items()
            for state, value in (("busy", busy), ("free", max(0, size - busy)))
        ],
        "fairline_desired_workers": served(readings.desired),
        "fairline_living_workers": served(readings.living),
        "fairline_db_pool": [
            (process.name, state, getattr(process, column))
            for process in readings.processes
            for state, column in DB_POOL.items()
        ],
        "fairline_oldest_snapshot_seconds": [(round(readings.snapshot_seconds, 3),)],
        "fairline_oldest_snapshot_transactions": [(readings.snapshot_transactions,)],
    }


def trouble_samples(
    trouble: Mapping[str, Mapping[str, float]], pools: Sequence[str]
) -> dict[str, Iterable[Sample]]:
    """Failures, and the restrictions because of them."""

    def of(kind: str) -> Mapping[str, float]:
        return trouble.get(kind, {})

    return {
        "fairline_circuit_open": of("circuit").items(),
        "fairline_job_type_quarantined": of("quarantine").items(),
        "fairline_throttled_tenants": [(pool, of("throttle").get(pool, 0)) for pool in pools],
        "fairline_pool_violations": of("violation").items(),
        "fairline_runs": [(of("runs").get("", 0),)],
        "fairline_retries": [(of("retry").get("", 0),)],
        "fairline_wait_prediction_error_ratio": of("forecast_error").items(),
        "fairline_wait_predictions": of("forecast").items(),
        "fairline_express_degraded": [(of("degraded").get("", 0),)],
    }


def other_samples(readings: GaugeReadings) -> dict[str, Iterable[Sample]]:
    """Job types, schedules and quotas."""
    states = ("active", "paused", "ended")
    return {
        "fairline_job_type_p95_seconds": [
            (known.type, round(known.p95_seconds, 4)) for known in readings.types
        ],
        "fairline_job_type_moved": [
            (known.type, known.declared_pool, known.pool, 1)
            for known in readings.types
            if known.pool != known.declared_pool
        ],
        "fairline_schedules": [(state, readings.schedules.get(state, 0)) for state in states],
        "fairline_oldest_due_tick_age_seconds": [(round(readings.tick_seconds, 3),)],
        "fairline_quota_per_minute": [
            (quota.dependency, quota.kind, quota.most) for quota in readings.quotas
        ],
        "fairline_quota_remaining": [
            (quota.dependency, quota.kind, quota.remaining)
            for quota in readings.quotas
            if quota.remaining is not None
        ],
        "fairline_quota_closed": [
            (quota.dependency, int(quota.closed or 0)) for quota in readings.quota_states
        ],
        "fairline_quota_refused_total": [
            (quota.dependency, quota.refused) for quota in readings.quota_states
        ],
    }
