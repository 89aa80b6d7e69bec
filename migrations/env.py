"""Runs migrations as the owner of the tables, each in its own transaction.

Against ``FAIRLINE_OWNER_DATABASE_URL``, or ``FAIRLINE_DATABASE_URL`` where that is not set.
"""

from __future__ import annotations

import time

from alembic import context
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, pool, text

from migrations.ddl import SET_LOCK_TIMEOUT, with_retries
from models.schema import Base
from models.settings import DatabaseSettings
from models.store.session import follow_primary

#: Held while migrating, so that two starting stacks take turns.
MIGRATION_LOCK = 0x_FA1E_11E
TURN_SECONDS = 0.2
#: The revision that a database which is at 0020 has before it: that is always the last one, and
#: others were put in front of it, in groups. Null: all of them were made.
MADE_BEFORE = """
    SELECT CASE WHEN to_regclass('jobs_due_by_tenant') IS NOT NULL THEN NULL
                WHEN to_regclass('removed_cells') IS NOT NULL THEN '0028'
                WHEN to_regclass('away_tenants') IS NOT NULL THEN '0027'
                WHEN EXISTS (SELECT FROM pg_policy WHERE polrelid = to_regclass('blob_counts'))
                THEN '0023'
                WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('express_lanes')
                                AND attname = 'offers' AND NOT attisdropped)
                THEN '0026'
                WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('tenants')
                                AND attname = 'requests_per_second' AND NOT attisdropped)
                THEN '0025'
                WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('sessions')
                                AND attname = 'subject' AND NOT attisdropped)
                THEN '0024'
                WHEN to_regclass('sessions') IS NOT NULL THEN '0022'
                WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('tenants')
                                              AND attname = 'types' AND NOT attisdropped)
                THEN '0019' ELSE '0015' END
"""


def take_turn(connection: Connection) -> None:
    """Wait until no other process migrates.

    Asked again and again: a statement that waits for the lock has a snapshot, and an index that is
    built concurrently waits for all of those.
    """
    lock = text("SELECT pg_try_advisory_lock(:lock)")
    while not connection.execute(lock, {"lock": MIGRATION_LOCK}).scalar():
        connection.commit()
        time.sleep(TURN_SECONDS)
    connection.execute(text(SET_LOCK_TIMEOUT))
    connection.commit()


def renumber(connection: Connection) -> None:
    """Take back revision 0020 in a database that had it before others were put in front of it.

    It was 0012 when it followed 0011; later it followed 0015, 0019, 0022, 0024, 0025, 0026, 0023,
    0027, then 0028.
    """
    migration = MigrationContext.configure(connection, opts={"script": context.script})
    current = migration.get_current_revision()
    before = "0011" if current == "0012" else None
    if current == "0020":
        before = connection.execute(text(MADE_BEFORE)).scalar()
    if before is not None:
        with Operations.context(migration):
            context.script.get_revision("0020").module.downgrade()
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{before}'"))
    connection.commit()


def run_online() -> None:
    engine = create_engine(DatabaseSettings().migrations_url, poolclass=pool.NullPool)
    follow_primary(engine)
    with engine.connect() as connection:
        take_turn(connection)

        def migrate() -> None:
            renumber(connection)
            context.configure(
                connection=connection,
                target_metadata=Base.metadata,
                transaction_per_migration=True,
            )
            with context.begin_transaction():
                context.run_migrations()

        with_retries(migrate)


if context.is_offline_mode():
    context.configure(
        url=DatabaseSettings().migrations_url,
        target_metadata=Base.metadata,
        literal_binds=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.execute(SET_LOCK_TIMEOUT)
        context.run_migrations()
else:
    run_online()
