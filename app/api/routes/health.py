"""``/healthz``: this process responds. ``/readyz``: a submitted job would be accepted and run."""

from __future__ import annotations

import logging

from flask import Blueprint, Response

from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import Returns, for_anyone
from app.api.schemas import platform_answers
from app.api.services import current_services
from models.leadership import BROKER_SECONDS, LEASE_SECONDS, RELIEVES, SILENT, is_recent
from models.presence import SERVING
from models.store.errors import StateStoreError
from models.store.snapshots import LONG_SECONDS, OLDEST_SNAPSHOT

logger = logging.getLogger(__name__)

health = Blueprint("health", __name__)

READ_READINESS = f"""
    SELECT current_setting('transaction_read_only')::bool AS reads_only,
           (SELECT extract(epoch FROM now() - expires_at) + {LEASE_SECONDS} FROM leaders
            WHERE role = 'scheduler') AS leader_age,
           (SELECT extract(epoch FROM now() - broker_seen_at) FROM leaders
            WHERE role = 'scheduler') AS broker_age,
           (SELECT extract(epoch FROM now() - broker_seen_at) FROM leaders
            WHERE {RELIEVES}
              AND EXISTS (SELECT 1 FROM leaders AS leader WHERE {SILENT})) AS relief_age,
           (SELECT json_object_agg(pool, slots) FROM (
                SELECT unnest(pools) AS pool, sum(slots) AS slots FROM processes
                WHERE {SERVING}
                GROUP BY 1) AS alive) AS slots,
           (SELECT seconds FROM ({OLDEST_SNAPSHOT}) AS oldest) AS snapshot_age
"""


@health.get("/healthz")
@for_anyone("This process responds", Returns(200, platform_answers.Health), query=None)
def get_health() -> Response:
    return Reply({"status": "ok"})


@health.get("/readyz")
@for_anyone(
    "A job would be accepted and run",
    Returns(200, platform_answers.Readiness),
    also=(Returns(503, platform_answers.Readiness),),
    query=None,
)
def get_readiness() -> Response:
    """All checks with their findings; 200 only if all of them pass.

    Without a scheduler jobs still run once relief dispatches them: ready, but degraded.
    """
    checks = read_checks()
    ready = all(check["ok"] for check in checks.values())
    degraded = checks.get("scheduler", {}).get("degraded", False)
    status = ("degraded" if degraded else "ready") if ready else "not ready"
    return Reply({"status": status, "checks": checks}, 200 if ready else 503)


def read_checks() -> dict[str, dict[str, object]]:
    """What a job needs to be accepted and run."""
    try:
        with read_state() as connection:
            row = connection.exec_driver_sql(READ_READINESS).one()
    except StateStoreError as error:
        logger.warning("not ready: %s", error)
        return {"database": {"ok": False, "detail": "not responding"}}
    leads = is_recent(row.leader_age, LEASE_SECONDS)
    scheduler: dict[str, object] = {"ok": leads, "age_seconds": seconds(row.leader_age)}
    broker_age, slots = row.broker_age, row.slots or {}
    if row.relief_age is not None:
        scheduler |= {"ok": True, "degraded": True}
        broker_age = row.relief_age
    database: dict[str, object] = {"ok": True}
    if row.snapshot_age >= LONG_SECONDS:
        minutes = int(row.snapshot_age // 60)
        database["detail"] = f"a transaction has been open for {minutes} minutes"
    if row.reads_only:
        database = {"ok": False, "detail": "only reads"}
    broker: dict[str, object] = {"ok": True, "age_seconds": seconds(broker_age)}
    if not is_recent(broker_age, BROKER_SECONDS):
        broker |= {"ok": False, "detail": "not reached by the scheduler"}
    checks = {"database": database, "scheduler": scheduler, "broker": broker}
    for pool in current_services().served_pools:
        alive = int(slots.get(pool, 0))
        checks[f"workers.{pool}"] = {"ok": alive > 0, "slots": alive}
    return checks


def seconds(value: object) -> float | None:
    """An age in seconds, rounded for people."""
    return None if value is None else round(float(value), 1)  # type: ignore[arg-type]  # Decimal
