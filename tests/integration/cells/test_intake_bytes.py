"""How much a cell keeps for others is a setting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.cells.copies import copy_tenants
from tests.integration.conftest import fresh_database
from tests.support.installation import Installation, installed
from tests.support.several_cells import unreachable
from tests.support.waiting import wait_for


@pytest.fixture
def cells(postgres: Running[EmbeddedPostgres], tmp_path: Path) -> Iterator[Installation]:
    """Two cells, of which the first keeps a megabyte for the other one's region."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        made = stack.enter_context(
            installed(urls, tmp_path, region="us", intake_bytes=1_000_000, db_connect_seconds=0.5)
        )
        for cell, region in (("cell-1", "us"), ("cell-2", "eu")):
            made.registry_execute("UPDATE cells SET region = %s WHERE name = %s", region, cell)
        made.refresh()
        yield made


def test_beyond_it_submissions_are_refused_with_the_reason(
    cells: Installation, postgres: Running[EmbeddedPostgres]
) -> None:
    key = cells.tenant("acme", "cell-2")
    away = cells.databases["cell-2"].engine
    copy_tenants(cells.registry, "cell-2", away, [cells.tenant_id("acme", "cell-2")])
    cells.refresh()
    assert cells.submit(key).status_code == 202
    # Not compressible: what counts is what is on the disk.
    large = {"text": os.urandom(200_000).hex()}
    with unreachable(postgres.service, away):
        cells.router.suspect("cell-2")
        wait_for(lambda: cells.router.is_away("cell-2"))
        answers = [cells.submit(key, payload=large) for _ in range(4)]
        [row] = cells.databases["cell-1"].query("SELECT count(*) AS kept FROM intake_jobs")
    wait_for(lambda: not cells.router.is_away("cell-2"))
    assert answers[0].status_code == 202, answers[0].text
    assert answers[3].status_code == 503, answers[3].text
    assert answers[3].get_json()["code"] == "CELL_UNAVAILABLE"
    assert "no room" in answers[3].get_json()["detail"]
    assert row.kept == sum(answer.status_code == 202 for answer in answers) < 4
