"""Cells: the tables of the registry and of a cell, and ``tenants.share``.

The previous version goes on beside it: it knows no cells, and submits for tenants that are away;
so nothing is moved before all processes are of this version.

Schedulers move tenants between cells. For that they read and write what they only deleted before,
API keys among it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from alembic import op

revision = "0027"
down_revision = "0023"

API, SCHEDULER, WORKER, TENANT = (
    "fairline_api",
    "fairline_scheduler",
    "fairline_worker",
    "fairline_tenant",
)
TABLES = (
    *("cells", "placements", "moves", "tenant_copies"),
    *("away_tenants", "cell_identity", "intake_jobs", "transfer_marks"),
)
OWN = "tenant_id = nullif(current_setting('fairline.tenant', true), '')::bigint"
#: Besides those of 0023, and written like them.
GRANTS: Mapping[str, Mapping[str, str]] = {
    API: {
        "cells": "SIUD",
        "placements": "SIUD",
        "moves": "SIUD",
        "tenant_copies": "SIUD",
        "away_tenants": "SIUD",
        "cell_identity": "SIU",
        "intake_jobs": "SIUD",
        "transfer_marks": "S",
        # So that ids of tenants are unique over all cells.
        "tenants_id_seq": "SU",
    },
    SCHEDULER: {
        "cells": "S",
        "placements": "SIUD",
        "moves": "SIUD",
        "tenant_copies": "SIUD",
        "away_tenants": "SIUD",
        "cell_identity": "S",
        "intake_jobs": "SIUD",
        "transfer_marks": "SIUD",
        # What a tenant has is read in one cell and inserted in another.
        "tenants": "IU",
        "tenant_limits": "IU",
        "api_keys": "SIU",
        "schedules": "I",
        "replays": "I",
        "checkpoints": "I",
        "run_logs": "I",
        "audit_log": "I",
        "job_count_keys": "I",
    },
    WORKER: {"away_tenants": "S", "cell_identity": "S"},
    TENANT: {"away_tenants": "S"},
}
PRIVILEGES = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE"}


def privileges(letters: str) -> str:
    """The privileges of an entry of ``GRANTS``, as SQL has them."""
    return ", ".join(PRIVILEGES[letter] for letter in re.findall("[SIUD]", letters))


def upgrade() -> None:
    op.execute("""
        CREATE TABLE cells (
            name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9-]{0,30}$'),
            number smallint NOT NULL UNIQUE CHECK (number BETWEEN 1 AND 4095),
            region text NOT NULL DEFAULT '',
            database_url text NOT NULL,
            broker_url text NOT NULL,
            read_database_url text NOT NULL DEFAULT '',
            state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'draining')),
            created_at timestamptz NOT NULL DEFAULT now(),
            changed_at timestamptz NOT NULL DEFAULT now()
        )""")
    op.execute("""
        CREATE TABLE placements (
            tenant text PRIMARY KEY,
            version bigint NOT NULL DEFAULT 1,
            cells jsonb NOT NULL CHECK (jsonb_typeof(cells) = 'object' AND cells <> '{}'),
            changed_at timestamptz NOT NULL DEFAULT now()
        )""")
    op.execute("CREATE INDEX placements_changed ON placements (changed_at)")
    op.execute("""
        CREATE TABLE moves (
            tenant text PRIMARY KEY,
            wanted jsonb NOT NULL,
            step text NOT NULL DEFAULT 'prepare',
            fence bigint NOT NULL DEFAULT 0,
            runner text NOT NULL DEFAULT '',
            lease_expires_at timestamptz NOT NULL DEFAULT to_timestamp(0),
            started_at timestamptz NOT NULL DEFAULT now(),
            changed_at timestamptz NOT NULL DEFAULT now(),
            transferred bigint NOT NULL DEFAULT 0,
            error text NOT NULL DEFAULT ''
        ) WITH (fillfactor = 70)""")
    op.execute("""
        CREATE TABLE tenant_copies (
            tenant text PRIMARY KEY,
            cell text NOT NULL,
            rows jsonb NOT NULL,
            copied_at timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 70)""")
    op.execute("""
        CREATE INDEX tenant_copies_keys ON tenant_copies USING gin (rows jsonb_path_ops)""")
    create_tables_of_cells()
    op.execute("""
        ALTER TABLE tenants ADD COLUMN share double precision NOT NULL DEFAULT 1
            CHECK (share > 0 AND share <= 1)""")
    grant()


def create_tables_of_cells() -> None:
    """What every cell has, besides what it had."""
    op.execute("""
        CREATE TABLE away_tenants (
            tenant_id bigint PRIMARY KEY,
            away boolean NOT NULL DEFAULT true,
            version bigint NOT NULL DEFAULT 0,
            changed_at timestamptz NOT NULL DEFAULT now()
        )""")
    op.execute("""
        CREATE TABLE cell_identity (
            one boolean PRIMARY KEY DEFAULT true CHECK (one),
            number smallint NOT NULL CHECK (number BETWEEN 1 AND 4095),
            name text NOT NULL
        )""")
    op.execute("""
        CREATE TABLE intake_jobs (
            id uuid PRIMARY KEY,
            job_ids uuid[] NOT NULL,
            tenant text NOT NULL,
            tenant_id bigint NOT NULL,
            cell text NOT NULL,
            key text,
            digest bytea,
            body text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            cancelled uuid[] NOT NULL DEFAULT '{}',
            handed_over_at timestamptz,
            alias_of uuid[]
        )""")
    op.execute("""
        CREATE UNIQUE INDEX intake_jobs_key ON intake_jobs (tenant, key) WHERE key IS NOT NULL""")
    op.execute("""
        CREATE INDEX intake_jobs_waiting ON intake_jobs (cell, id) WHERE handed_over_at IS NULL""")
    op.execute("""
        CREATE INDEX intake_jobs_handed_over ON intake_jobs (handed_over_at)
        WHERE handed_over_at IS NOT NULL""")
    op.execute("CREATE INDEX intake_jobs_tenant ON intake_jobs (tenant, id)")
    op.execute("""
        CREATE INDEX intake_jobs_members ON intake_jobs USING gin (job_ids)
        WHERE cardinality(job_ids) > 1""")
    op.execute("""
        CREATE TABLE transfer_marks (
            mark text PRIMARY KEY,
            number bigint NOT NULL DEFAULT 0,
            at timestamptz NOT NULL DEFAULT now()
        )""")


def grant() -> None:
    """Privileges, and the policies of the tables that say whose their rows are."""
    for table in ("away_tenants", "intake_jobs"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        many = ", ".join(role for role in (API, SCHEDULER, WORKER) if table in GRANTS[role])
        op.execute(f"CREATE POLICY many_tenants ON {table} TO {many} USING (true)")
        op.execute(f"CREATE POLICY one_tenant ON {table} TO {TENANT} USING ({OWN})")
    op.execute(f"ALTER POLICY many_tenants ON audit_log TO {API}, {SCHEDULER}")
    for role, tables in GRANTS.items():
        for table, letters in tables.items():
            op.execute(f"GRANT {privileges(letters)} ON {table} TO {role}")


def downgrade() -> None:
    for role, tables in GRANTS.items():
        for table in tables.keys() - set(TABLES):
            letters = tables[table]
            op.execute(f"REVOKE {privileges(letters)} ON {table} FROM {role}")
    # It had this one for the tenant of a key.
    op.execute(f"GRANT SELECT (tenant_id) ON api_keys TO {SCHEDULER}")
    op.execute(f"ALTER POLICY many_tenants ON audit_log TO {API}")
    op.execute("ALTER TABLE tenants DROP COLUMN share")
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
