"""A tenant with a job in every state, and with a row in every table that a move has to look at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from models.jobs.ids import new_id
from tests.support.moving_cells import DEAD, RETRY, A, MovingCells

LATER = datetime.now(UTC) + timedelta(hours=1)


def add_rows_everywhere(cells: MovingCells) -> dict[str, str]:
    """A job in every state, and a row in every table that a tenant has rows in."""
    made = {
        "running": cells.start(A, type="sleep").id,
        "succeeded": cells.ended(A),
        "dead": cells.ended(A, DEAD),
        "retried": cells.ended(A, RETRY),
        "queued": cells.admitted(A, "first"),
        "scheduled": cells.admitted(A, execute_at=LATER),
    }
    source = cells.cells[A]
    source.execute(
        """INSERT INTO run_logs (job_id, place, lease, log, traceback)
           VALUES (%s, 1, 1, '[{"message": "hello"}]', 'Traceback')""",
        made["dead"],
    )
    source.execute(
        "INSERT INTO checkpoints (job_id, lease, state) VALUES (%s, 1, '{\"at\": 7}')",
        made["retried"],
    )
    source.execute(
        """INSERT INTO applications (id, tenant_id, candidate, role, score, scored_at)
           VALUES (%s, %s, 'Ada', 'general', 91.5, now())""",
        made["succeeded"],
        cells.tenant_id,
    )
    source.execute(
        """INSERT INTO applications (id, tenant_id, candidate, role, score, scored_at)
           VALUES (%s, %s, 'Retired', 'general', 77.25, now())""",
        new_id(),
        cells.tenant_id,
    )
    source.execute(
        """INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,
                                  payload, next_at, last_job_id)
           VALUES (%s, %s, 'nightly', '0 3 * * *', 'UTC', 'allow', 'none', 'echo', '{}',
                   now() + interval '1 day', %s)""",
        new_id(),
        cells.tenant_id,
        made["running"],
    )
    source.execute(
        """INSERT INTO replays (id, tenant_id, digest, before, position)
           VALUES (%s, %s, 'digest', now() - interval '1 day', %s)""",
        new_id(),
        cells.tenant_id,
        "00000000-0000-0000-0000-000000000000",
    )
    source.execute(
        "INSERT INTO erasures (id, tenant_id, erased_at, due_at) VALUES (%s, %s, now(), NULL)",
        new_id(),
        cells.tenant_id,
    )
    source.execute(
        "INSERT INTO events (tenant_id, kind, at) VALUES (%s, 'circuit_open', now()),"
        " (%s, 'circuit_closed', now() - interval '2 days')",
        cells.tenant_id,
        cells.tenant_id,
    )
    source.execute(
        "INSERT INTO refusals (tenant_id, day, code, refused) VALUES (%s, current_date, 'X', 5)",
        cells.tenant_id,
    )
    source.execute(
        """INSERT INTO tallies (kind, bucket, name, total, amount)
           VALUES ('submission', date_trunc('hour', now()), %s, 11, 0)""",
        str(cells.tenant_id),
    )
    source.execute(
        "INSERT INTO tenant_limits (tenant_id, pool, in_flight) VALUES (%s, 'medium', 9)",
        cells.tenant_id,
    )
    source.execute(
        """INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', %s, 'short');
           INSERT INTO rate_buckets (tenant_id) VALUES (%s);
           INSERT INTO blob_counts (tenant_id, bytes, counted_at) VALUES (%s, 1, now());
           INSERT INTO shares (tenant_id, pool, pass, counted_day, counted_seconds, weight)
           VALUES (%s, 'medium', 1, current_date, 1, 1)""",
        *([cells.tenant_id] * 4),
    )
    return made
