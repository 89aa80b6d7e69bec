"""Settings of the state store, read once from the environment."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class DatabaseSettings(BaseSettings):
    """What it takes to reach PostgreSQL."""

    model_config = SettingsConfigDict(env_prefix="FAIRLINE_", env_file=".env", extra="ignore")

    #: SQLAlchemy URL; plain ``postgresql://`` would mean psycopg 3 in SQLAlchemy 2.1.
    database_url: str = "postgresql+psycopg2://fairline@127.0.0.1:5432/fairline"
    #: Connections a process keeps; group commit makes two enough at any concurrency.
    db_pool_size: int = Field(default=2, ge=1, le=100)
    #: How long to wait for a connection to be established or taken from the pool.
    db_connect_seconds: float = Field(default=1.5, gt=0)
    #: How long one statement may take before the server counts as away.
    db_statement_seconds: float = Field(default=5.0, gt=0)
