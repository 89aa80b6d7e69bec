"""``/metrics`` for Prometheus. Gauges that describe the system come from the database, so
every API process tells the same.

A page is told again for a second, and who asks while one is read gets that one: anybody may
ask, and a flood of them costs a process one read a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flask import Blueprint, Response, current_app
from flask.blueprints import BlueprintSetupState

from app.api.access import Access, open_to
from app.api.coalesced import Page
from app.api.exposition import by, family
from app.api.gauges import DEAD_LETTERS_COUNTED, STATES, Readings, read_gauges, slots_of
from app.api.openapi.declared import Answer, described
from app.api.services import services
from app.api.state import read_state
from app.config import settings
from app.scaling.policy import policy_of
from models.errors import StateStoreUnavailable
from models.pools import POOLS
from models.states import TERMINAL

metrics = Blueprint("metrics", __name__)

UNSAID: Mapping[str, float] = {}


@metrics.record_once
def _keep_page(state: BlueprintSetupState) -> None:
    state.app.extensions["fairline_metrics"] = Page()


@metrics.get("/metrics")
@open_to(Access.PUBLIC)
@described(
    "Metrics for Prometheus",
    Answer(200, "Text format 0.0.4.", {"type": "string"}, content_type="text/plain"),
    query=None,
    errors=(StateStoreUnavailable,),
)
def get_metrics() -> Response:
    page: Page = current_app.extensions["fairline_metrics"]
    return Response(page.read(read_page), content_type="text/plain; version=0.0.4")


def read_page() -> str:
    """The system as it is now."""
    with read_state() as taken:
        return tell(read_gauges(taken), services().served_pools, objectives())


def objectives() -> dict[str, float]:
    """Seconds that nobody should wait longer in a pool: beyond, it gets more workers."""
    changes = settings().scale_policy
    return {pool: policy_of(pool, {}, {}, changes).up_seconds for pool in POOLS}


def tell(
    readings: Readings, served_pools: Iterable[str], most_seconds: Mapping[str, float] = UNSAID
) -> str:
    """The readings in the Prometheus text format."""
    pools = sorted({*served_pools, *readings.counts})
    lines = [
        *jobs(readings, pools, most_seconds),
        *workers(readings, pools),
        *troubles(readings, pools),
        *durations(readings),
        *recurring(readings),
        *quotas(readings),
    ]
    return "\n".join(lines) + "\n"


def jobs(
    readings: Readings, pools: Iterable[str], most_seconds: Mapping[str, float]
) -> Iterator[str]:
    """Where the jobs are."""
    counts = readings.counts
    yield from family(
        "fairline_queue_depth",
        "gauge",
        "Jobs waiting in the line.",
        (((("pool", pool),), counts.get(pool, {}).get("queued", 0)) for pool in pools),
    )
    yield from family(
        "fairline_jobs_in_flight",
        "gauge",
        "Jobs at the broker or running.",
        (
            ((("pool", pool), ("state", state)), counts.get(pool, {}).get(state, 0))
            for pool in pools
            for state in ("scheduled", "dispatched", "running")
        ),
    )
    yield from family(
        "fairline_oldest_job_age_seconds",
        "gauge",
        "Age of the oldest in the line; with thousands of tenants and priorities, at least.",
        by("pool", {pool: round(readings.line_seconds.get(pool, 0.0), 3) for pool in pools}),
    )
    yield from family(
        "fairline_wait_objective_seconds",
        "gauge",
        "The age of the oldest beyond which a pool gets more workers.",
        by("pool", {pool: most_seconds[pool] for pool in pools if pool in most_seconds}),
    )
    yield from family(
        "fairline_oldest_due_unpromoted_age_seconds",
        "gauge",
        "How long the oldest due job waits to join the line.",
        by("pool", {pool: round(readings.due_seconds.get(pool, 0.0), 3) for pool in pools}),
    )
    yield from family(
        "fairline_jobs_admitted_total",
        "counter",
        "Jobs submitted or replayed.",
        by("pool", {pool: readings.admitted().get(pool, 0) for pool in pools}),
    )
    yield from family(
        "fairline_jobs_total",
        "counter",
        "Jobs ended, by outcome.",
        (
            ((("pool", pool), ("outcome", state)), counts.get(pool, {}).get(state, 0))
            for pool in pools
            for state in STATES
            if state in TERMINAL
        ),
    )
    yield from family(
        "fairline_refusals_total",
        "counter",
        "Submissions that were refused, by the code of the reason.",
        by("code", readings.refused),
    )
    yield from family(
        "fairline_dead_letters",
        "gauge",
        f"Dead letters; no more than {DEAD_LETTERS_COUNTED} in all are counted.",
        by("type", readings.dead_letters),
    )


def workers(readings: Readings, pools: Iterable[str]) -> Iterator[str]:
    """Who could run them."""
    slots = slots_of(readings, pools)
    yield from family(
        "fairline_pool_slots",
        "gauge",
        "Slots of living workers.",
        (
            ((("pool", pool), ("state", state)), value)
            for pool, (size, busy) in slots.items()
            for state, value in (("busy", busy), ("free", max(0, size - busy)))
        ),
    )
    yield from family(
        "fairline_desired_workers",
        "gauge",
        "Workers that a pool should have.",
        by("pool", {pool: n for pool, n in sorted(readings.desired.items()) if pool in slots}),
    )
    yield from family(
        "fairline_living_workers",
        "gauge",
        "Workers that a pool has, as the autoscaler counts them.",
        by("pool", {pool: n for pool, n in sorted(readings.living.items()) if pool in slots}),
    )
    yield from family(
        "fairline_db_pool",
        "gauge",
        "Connections of a process; waiting is the peak since its last heartbeat.",
        (
            ((("process", row[0]), ("state", state)), value)
            for row in readings.processes
            for state, value in (("size", row[5]), ("in_use", row[6]), ("waiting", row[7]))
        ),
    )


def troubles(readings: Readings, pools: Iterable[str]) -> Iterator[str]:
    """What fails, and what is held back for it."""
    trouble = readings.trouble
    yield from family(
        "fairline_circuit_open",
        "gauge",
        "1 while a dependency is not called, 0.5 while it is asked whether it is back.",
        by("dependency", trouble.get("circuit", {})),
    )
    yield from family(
        "fairline_job_type_quarantined",
        "gauge",
        "1 for a job type that mostly fails and gets fewer tries.",
        by("type", trouble.get("quarantine", {})),
    )
    throttled = trouble.get("throttle", {})
    yield from family(
        "fairline_throttled_tenants",
        "gauge",
        "Tenants that run one job at a time because theirs kill workers.",
        by("pool", {pool: throttled.get(pool, 0) for pool in pools}),
    )
    yield from family(
        "fairline_pool_violations",
        "gauge",
        "Runs of the last hour that were longer than the pool's bound.",
        by("type", trouble.get("violation", {})),
    )
    yield from family(
        "fairline_runs",
        "gauge",
        "Runs that gave a result or failed in the last ten minutes.",
        [((), trouble.get("runs", {}).get("", 0))],
    )
    yield from family(
        "fairline_retries",
        "gauge",
        "Retries granted in the last ten minutes.",
        [((), trouble.get("retry", {}).get("", 0))],
    )
    yield from family(
        "fairline_wait_prediction_error_ratio",
        "gauge",
        "Mean error of predicted starts in the last hour, as a part of the wait.",
        by("pool", trouble.get("forecast_error", {})),
    )
    yield from family(
        "fairline_wait_predictions",
        "gauge",
        "Predictions that this is the mean of.",
        by("pool", trouble.get("forecast", {})),
    )
    yield from family(
        "fairline_express_degraded",
        "gauge",
        "1 while no scheduler lives and an API process dispatches, without fair share.",
        [((), trouble.get("degraded", {}).get("", 0))],
    )


def durations(readings: Readings) -> Iterator[str]:
    """How long job types take, and which were moved for it."""
    yield from family(
        "fairline_job_type_p95_seconds",
        "gauge",
        "What 95 in 100 recent runs of a job type do not exceed.",
        by("type", {name: round(p95, 4) for name, p95, *_ in readings.types}),
    )
    yield from family(
        "fairline_job_type_moved",
        "gauge",
        "1 for a job type that goes to another pool than the declared one.",
        (
            ((("type", name), ("from", declared), ("to", pool)), 1)
            for name, _, declared, pool in readings.types
            if pool != declared
        ),
    )


def recurring(readings: Readings) -> Iterator[str]:
    """Schedules and their ticks."""
    yield from family(
        "fairline_schedules",
        "gauge",
        "Schedules; one that has ended has no further tick.",
        by("state", {s: readings.schedules.get(s, 0) for s in ("active", "paused", "ended")}),
    )
    yield from family(
        "fairline_oldest_due_tick_age_seconds",
        "gauge",
        "How long the oldest due tick of a schedule waits to become a job.",
        [((), round(readings.tick_seconds, 3))],
    )


def quotas(readings: Readings) -> Iterator[str]:
    """What dependencies take, and what they refused."""
    yield from family(
        "fairline_quota_per_minute",
        "gauge",
        "What a dependency takes in a minute, declared or learned.",
        (((("dependency", name), ("kind", kind)), most) for name, kind, most, _ in readings.quotas),
    )
    yield from family(
        "fairline_quota_remaining",
        "gauge",
        "What the last answer of a dependency said is left.",
        (
            ((("dependency", name), ("kind", kind)), left)
            for name, kind, _, left in readings.quotas
            if left is not None
        ),
    )
    yield from family(
        "fairline_quota_closed",
        "gauge",
        "1 while a dependency that refused is not called.",
        by("dependency", {name: int(closed or 0) for name, _, closed in readings.taps}),
    )
    yield from family(
        "fairline_quota_refused_total",
        "counter",
        "Calls that a dependency refused for its quota.",
        by("dependency", {name: refused for name, refused, _ in readings.taps}),
    )
