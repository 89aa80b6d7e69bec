"""The health check that docker-compose.yml gives schedulers and workers."""

from __future__ import annotations

import os
import subprocess
import sys

from sqlalchemy import Engine

from models.presence import Presence, announce, process_name
from models.store.session import execute
from tests.support.compose import read_compose


def test_only_a_process_that_reports_from_this_container_is_healthy(
    engine: Engine, database_url: str
) -> None:
    services = read_compose({})["services"]

    def is_healthy(service: str) -> bool:
        _, _, *arguments = services[service]["healthcheck"]["test"]
        environment = {**os.environ, "FAIRLINE_DATABASE_URL": database_url}
        words = (sys.executable, *arguments)
        return not subprocess.run(
            words, env=environment, check=False, capture_output=True
        ).returncode

    assert not is_healthy("worker") and not is_healthy("scheduler")
    announce(engine, Presence("worker-medium@elsewhere:abcdef:1", "worker", ["medium"]))
    assert not is_healthy("worker")
    announce(engine, Presence(process_name("worker-medium"), "worker", ["medium"]))
    assert is_healthy("worker")
    assert not is_healthy("worker-long") and not is_healthy("scheduler")
    execute(engine, "UPDATE processes SET heartbeat_at = now() - interval '1 min'", {})
    assert not is_healthy("worker")
