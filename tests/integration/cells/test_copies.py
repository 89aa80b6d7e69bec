"""The registry's copies of tenants: a copy replaces one that was read earlier, and no other."""

from __future__ import annotations

from typing import Any

import pytest

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
