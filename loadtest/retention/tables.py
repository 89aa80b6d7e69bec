"""What the tables hold: sizes on disk, dead rows, the work of vacuum, and counts of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from app.reads.search import id_before
from loadtest.fleet import rows
from loadtest.retention.layout import TABLES

#: Of every table with its partitions.
READ_TABLES = """
    SELECT root.name, sum(pg_table_size(part.oid))::bigint AS heap,
           sum(pg_indexes_size(part.oid))::bigint AS indexes,
           coalesce(sum(stat.n_dead_tup), 0)::bigint AS dead,
           coalesce(sum(stat.autovacuum_count), 0)::bigint AS vacuums,
           coalesce(sum(stat.total_autovacuum_time), 0)::float8 / 1000 AS vacuum_seconds
    FROM unnest(CAST(:tables AS text[])) AS root (name), LATERAL (
        SELECT root.name::regclass::oid AS oid
        UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = root.name::regclass) AS part
    LEFT JOIN pg_stat_all_tables AS stat ON stat.relid = part.oid
    GROUP BY root.name ORDER BY heap DESC
"""
COUNT_JOBS = """
    SELECT count(*) AS jobs FROM jobs
    WHERE id >= CAST(:first AS uuid) AND id < CAST(:last AS uuid)
"""
COUNT_DEAD = f"{COUNT_JOBS} AND status = 'dead'"


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table with its partitions, or several tables."""

    name: str
    #: Bytes.
    heap: int
    indexes: int
    #: Dead rows that vacuum has not removed.
    dead: int
    #: By autovacuum, so far.
    vacuums: int
    vacuum_seconds: float

    @property
    def size(self) -> int:
        return self.heap + self.indexes


def read_tables(engine: Engine) -> list[TableFigures]:
    """Every table that retention works on, the largest first."""
    found = rows(engine, READ_TABLES, tables=list(TABLES))
    return [TableFigures(**row._mapping) for row in found]


def read_total(engine: Engine) -> TableFigures:
    """All of them together."""
    found = read_tables(engine)
    names = ("heap", "indexes", "dead", "vacuums", "vacuum_seconds")
    return TableFigures("all", *[sum(getattr(one, name) for one in found) for name in names])


def count_jobs(
    engine: Engine, since: datetime, until: datetime, statement: str = COUNT_JOBS
) -> int:
    """Jobs that were submitted in this time."""
    bounds = {"first": id_before(since), "last": id_before(until)}
    return int(rows(engine, statement, **bounds)[0].jobs)
