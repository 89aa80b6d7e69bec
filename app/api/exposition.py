"""The metrics of ``/metrics`` with their samples, in Prometheus' text format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from app.api.metric_names import METRICS, OWN_METRICS
from app.policy.tier_limits import TIER_LIMITS
from app.reads.gauges import STATES, GaugeReadings, slots_of
from models.jobs.states import TERMINAL, FailureClass
from models.pools import POOLS, RUN_BOUNDS, WAIT_BOUNDS
from models.tallies import TallyKind, joined

#: Columns of ``processes`` by state of the connections.
DB_POOL = {"size": "db_size", "in_use": "db_in_use", "waiting": "db_waiters"}

#: The values of its labels and, last, the sample's own.
Sample = tuple[Any, ...]

#: Histograms: their kind, and their buckets.
HISTOGRAMS = {
    "fairline_wait_duration_seconds": (TallyKind.WAIT_SECONDS, WAIT_BOUNDS),
    "fairline_run_duration_seconds": (TallyKind.RUN_SECONDS, RUN_BOUNDS),
}
#: Counters by pool and another label: their kind, and the label's values. All of them are there
#: from the beginning, at 0: a rate does not see the first increase of one that appears with it.
TALLIED = {
    "fairline_jobs_retried_total": (TallyKind.RETRIED, tuple(FailureClass)),
    "fairline_workers_recycled_total": (TallyKind.RECYCLED, ("limit", "lost")),
}


@dataclass(frozen=True, slots=True)
class Collected:
    """A collector of these metrics only; the library's registry adds those of the process."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


@dataclass(frozen=True, slots=True)
class InstanceReadings:
    """What an API instance knows of itself."""

    revision: str
    python: str
    #: Free and total bytes by volume.
    disks: Mapping[str, tuple[int, int]]
    #: Of the standby that is read from, if any.
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ConfiguredLimits:
    """What the settings allow."""

    #: By pool.
    most_workers: Mapping[str, int]
    #: Submissions per second by tier; None is no limit.
    submit_rates: Mapping[str, float | None]


def exposition(
    own: InstanceReadings,
    readings: GaugeReadings | None,
    served_pools: Iterable[str],
    limits: ConfiguredLimits,
) -> str:
    """The page; without ``readings`` another instance reports the system."""
    families = [
        family(name, text, own_samples(own, readings)) for name, text in OWN_METRICS.items()
    ]
    if readings is not None:
        samples = system_samples(readings, sorted({*served_pools, *readings.counts}), limits)
        families += [family(name, text, samples) for name, text in METRICS.items()]
    return generate_latest(Collected(families)).decode()


def own_samples(
    own: InstanceReadings, readings: GaugeReadings | None
) -> dict[str, Iterable[Sample]]:
    return {
        "fairline_build_info": [(own.revision, own.python, 1)],
        "fairline_reports_system": [(int(readings is not None),)],
        "fairline_read_lag_seconds": [
            (round(seconds, 3),) for seconds in (own.lag_seconds,) if seconds is not None
        ],
        "fairline_disk_free_bytes": [(name, free) for name, (free, _) in own.disks.items()],
        "fairline_disk_size_bytes": [(name, size) for name, (_, size) in own.disks.items()],
    }


def system_samples(
    readings: GaugeReadings, pools: Sequence[str], limits: ConfiguredLimits
) -> dict[str, Iterable[Sample]]:
    """The samples of all METRICS, by name."""
    return {
        **job_samples(readings, pools),
        **tallied_samples(readings, pools),
        **limit_samples(limits.submit_rates, pools),
        **worker_samples(readings, pools, limits.most_workers),
        **trouble_samples(readings.trouble, pools),
        **other_samples(readings),
    }


def family(name: str, text: str, samples: Mapping[str, Iterable[Sample]]) -> Metric:
    """One metric with its samples."""
    name, _, joined_labels = name.rstrip("}").partition("{")
    labels = joined_labels.split(",") if joined_labels else ()
    if name in HISTOGRAMS:
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for *values, (buckets, seconds) in samples[name]:
            histogram.add_metric(values, buckets, seconds)
        return histogram
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    made = kind(name, text, labels=labels)
    for *values, value in samples[name]:
        made.add_metric(values, value)
    return made


def tallied_samples(readings: GaugeReadings, pools: Sequence[str]) -> dict[str, Iterable[Sample]]:
    """Counters and histograms that the processes add to the table."""
    dispatched = readings.total(TallyKind.DISPATCHED)
    return {
        "fairline_jobs_dispatched_total": [
            (pool, dispatched.get(pool, (0, 0))[0]) for pool in pools
        ],
        **{
            name: [
                (pool, label, readings.total(kind).get(joined(pool, label), (0, 0))[0])
                for pool in pools
                for label in labels
            ]
            for name, (kind, labels) in TALLIED.items()
        },
        **{
            name: [(pool, histogram(readings.total(kind), pool, bounds, kind)) for pool in pools]
            for name, (kind, bounds) in HISTOGRAMS.items()
        },
    }


def histogram(
    totals: Mapping[str, tuple[int, int]], pool: str, bounds: Sequence[float], kind: TallyKind
) -> tuple[list[tuple[str, int]], float]:
    """Buckets, each with those below it, and the sum; also bounds that another version had."""
    found = {
        float(bound): counted
        for (of, _, bound), counted in ((key.partition(":"), c) for key, c in totals.items())
        if of == pool
    }
    buckets, below, amount = [], 0, 0
    for bound in sorted({*bounds, *found, math.inf}):
        total, added = found.get(bound, (0, 0))
        below, amount = below + total, amount + added
        buckets.append(("+Inf" if bound == math.inf else str(float(bound)), below))
    return buckets, amount / kind.per_unit


def job_samples(readings: GaugeReadings, pools: Sequence[str]) -> dict[str, Iterable[Sample]]:
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
            (pool, POOLS[pool].objective_seconds) for pool in pools if pool in POOLS
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


def worker_samples(
    readings: GaugeReadings, pools: Sequence[str], most_workers: Mapping[str, int]
) -> dict[str, Iterable[Sample]]:
    """Slots, workers, the scheduler and the database."""
    silent = readings.silent_seconds
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
        "fairline_most_workers": served(most_workers),
        "fairline_living_workers": served(readings.living),
        "fairline_leader_silent_seconds": [] if silent is None else [(round(silent, 3),)],
        "fairline_largest_deficit_seconds": [
            (pool, round(readings.owed_seconds.get(pool, 0.0), 3)) for pool in pools
        ],
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
