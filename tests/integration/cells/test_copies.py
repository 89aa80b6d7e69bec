"""The registry's copies of tenants: a copy replaces one that was read earlier, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine

from app.tenants.changes import create_tenant
from app.tenants.terms import Change
from models.cells import copies
from models.cells.copies import copy_tenants, read_copy
from tests.support.moving_cells import A, MovingCells


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


def test_a_copy_of_a_tenant_is_not_overwritten_by_one_that_was_read_earlier(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that stood still after its read would bring a revoked key back."""
    engine = cells.databases.engine(A)
    copy_tenants(cells.registry, A, engine, [cells.tenant_id])
    cells.cells[A].execute("UPDATE tenants SET submit_per_second = 7")
    read = copies.read_tenants

    def read_and_stand_still(*asked: Any) -> Any:
        found = read(*asked)
        monkeypatch.undo()
        cells.cells[A].execute("UPDATE api_keys SET revoked_at = now()")
        assert copy_tenants(cells.registry, A, engine, [cells.tenant_id]) == 1
        return found

    monkeypatch.setattr(copies, "read_tenants", read_and_stand_still)
    assert copy_tenants(cells.registry, A, engine, [cells.tenant_id]) == 0
    copy = read_copy(cells.registry, "acme")
    assert copy is not None
    assert copy.rows["tenants"][0]["submit_per_second"] == "7"
    assert copy.rows["api_keys"][0]["revoked_at"] is not None


def test_tenants_are_copied_also_when_the_clock_of_the_registry_was_set_back(
    cells: MovingCells,
) -> None:
    engine = cells.databases.engine(A)
    copy_tenants(cells.registry, A, engine, [cells.tenant_id])
    cells.execute("UPDATE tenant_copies SET copied_at = now() + interval '1 hour'")
    cells.cells[A].execute("UPDATE api_keys SET revoked_at = now()")
    assert copy_tenants(cells.registry, A, engine, [cells.tenant_id]) == 1


def test_tenants_whose_schedules_are_large_are_copied_in_parts(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they would not fit into the scheduler's memory."""
    monkeypatch.setattr(copies, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(copies, "BATCH", 3)
    for tenant_id, size in ((11, 600), (12, 300), (13, 300), (14, 5_000), (15, 1)):
        cells.cells[A].execute(
            "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
            " payload) VALUES (gen_random_uuid(), %s, 'large', '0 0 * * *', 'UTC', 'allow', 'none',"
            " 'echo', to_json(repeat('x', %s)))",
            tenant_id,
            size - 2,  # the quotes
        )
    found = list(copies.batches_of(cells.databases.engine(A), range(11, 20)))
    assert found == [[11, 12], [13], [14], [15, 16, 17], [18, 19]]


def test_a_tenant_that_cannot_be_copied_keeps_no_other_from_it(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, read = cells.databases.engine(A), copies.read_tenants
    other = create_tenant(engine, "other", Change({})).id

    def spoil(engine: Engine, ids: Sequence[int]) -> Any:
        found = read(engine, ids)
        if other in ids:
            found["other"]["tenants"][0]["name"] = "\0"  # no text for jsonb
        return found

    monkeypatch.setattr(copies, "read_tenants", spoil)
    assert copy_tenants(cells.registry, A, engine, [cells.tenant_id, other]) == 1
    assert read_copy(cells.registry, "acme") is not None
    assert read_copy(cells.registry, "other") is None
