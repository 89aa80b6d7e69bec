"""Runs migrations against ``FAIRLINE_DATABASE_URL``."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool, text

from models.schema import Base
from models.settings import DatabaseSettings

#: Held while migrating, so that two starting stacks take turns.
MIGRATION_LOCK = 0x_FA1E_11E


def run_online() -> None:
    engine = create_engine(DatabaseSettings().database_url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata)
        with context.begin_transaction():
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK}
            )
            context.run_migrations()


if context.is_offline_mode():
    context.configure(
        url=DatabaseSettings().database_url, target_metadata=Base.metadata, literal_binds=True
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    run_online()
