"""Refusals, counted by tenant, day and code; those of no tenant's submissions, by code alone.

Counted in memory and written by one statement, at most once per second. What a process has not
written when it is killed is lost; while the state store is away it is kept, up to a bound. A
write whose answer was lost is written again, so a second of an outage may count twice.

The row of tenant 0 and no day is the sum over all tenants, for the metrics.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import date

from sqlalchemy import Connection, Engine

from app.repeated import BackgroundLoop
from models.store.arrays import plain_array, text_array
from models.store.clock import DATABASE_CLOCK
from models.store.errors import StateStoreError
from models.store.session import execute

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
#: Different counts kept while they cannot be written.
MOST_KEPT = 10_000
#: Stands for all days in the sum over all tenants.
NO_DAY = date(1970, 1, 1)

#: In one order, in which every process writes them.
ADD_REFUSALS = """
    INSERT INTO refusals (tenant_id, day, code, refused)
    SELECT * FROM unnest(%(tenants)s::bigint[], %(days)s::date[], %(codes)s::text[],
                         %(refused)s::bigint[]) AS new (tenant_id, day, code, refused)
    ORDER BY tenant_id, day, code
    ON CONFLICT (tenant_id, day, code) DO UPDATE
    SET refused = refusals.refused + excluded.refused
"""
READ_REFUSALS = """
    SELECT day, code, refused FROM refusals
    WHERE tenant_id = %(tenant_id)s AND day > current_date - %(days)s::int
    ORDER BY day DESC, code
"""


#: Tenant, day and code.
Refusal = tuple[int, date, str]


class Refusals:
    """The refusals of one process."""

    def __init__(self, engine: Engine, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._engine = engine
        self._counts: Counter[Refusal] = Counter()
        self._guard = threading.Lock()
        self._writer = BackgroundLoop(
            self.flush, flush_seconds, "refusals", away="refusals are counted in memory"
        )

    def count(self, tenant_id: int, code: str, refused: int = 1) -> None:
        """Count refused submissions; of tenant 0, other requests."""
        one = (tenant_id, DATABASE_CLOCK.now().date() if tenant_id else NO_DAY, code)
        with self._guard:
            if one not in self._counts and len(self._counts) >= MOST_KEPT:
                return
            self._counts[one] += refused
        self._writer.start()

    def flush(self) -> None:
        """Write what was counted."""
        with self._guard:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        written = Counter(counts)
        for (tenant_id, _, code), refused in counts.items():
            if tenant_id:
                written[0, NO_DAY, code] += refused
        tenants, days, codes = zip(*written, strict=True)
        columns = {
            "tenants": plain_array(tenants),
            "days": plain_array(days),
            "codes": text_array(codes),
            "refused": plain_array(written.values()),
        }
        try:
            execute(self._engine, ADD_REFUSALS, columns)
        except StateStoreError:
            with self._guard:
                self._counts.update(counts)
            raise

    def close(self) -> None:
        """Write the rest, if that is possible, and no more after it."""
        self._writer.close()
        try:
            self.flush()
        except StateStoreError as error:
            logger.warning("counts of rejections could not be written and are lost: %s", error)


def read_refusals(connection: Connection, tenant_id: int, days: int) -> dict[str, dict[str, int]]:
    """A tenant's refused submissions of the last days, today included, by day and code."""
    found: dict[str, dict[str, int]] = {}
    rows = connection.exec_driver_sql(READ_REFUSALS, {"tenant_id": tenant_id, "days": days})
    for day, code, refused in rows:
        found.setdefault(day.isoformat(), {})[code] = refused
    return found
