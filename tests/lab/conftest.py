"""The services under the load lab and the benchmarks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.postgres import EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import running
from loadtest.fleet import Fleet
from tests.acceptance.conftest import need_rabbitmq


@pytest.fixture(scope="session")
def lab_fleet() -> Iterator[Fleet]:
    """One PostgreSQL and one RabbitMQ for all tests of a process, one after the other."""
    need_rabbitmq()
    with tempfile.TemporaryDirectory(prefix="fairline-lab-") as folder:
        home = Path(folder)
        with (
            running(EmbeddedPostgres(home), home / "logs") as postgres,
            running(EmbeddedRabbitMQ(home), home / "logs") as rabbitmq,
        ):
            started = Fleet(home, postgres, rabbitmq)
            yield started
            started.stop()
