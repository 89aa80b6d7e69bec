"""Which cell of a region keeps the submissions of a tenant whose own cell is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from app.cells.region_intake import host_of

CELLS = (("cell-2", "cell-3", "cell-4"), ("cell-5",))
TENANTS = [f"tenant-{number}" for number in range(300)]


def hosts(away: Collection[str] = ()) -> Mapping[str, str | None]:
    """The host of each tenant."""
    return {tenant: host_of(tenant, CELLS, lambda name: name not in away) for tenant in TENANTS}


def test_the_tenants_of_a_lost_cell_are_divided_over_the_cells_of_the_region() -> None:
    counted = Counter(hosts().values())
    assert counted.keys() == {"cell-2", "cell-3", "cell-4"}
    assert min(counted.values()) > 60


def test_only_tenants_of_a_host_that_goes_away_too_find_another_one() -> None:
    before, after = hosts(), hosts(away={"cell-3"})
    moved = {tenant for tenant in TENANTS if after[tenant] != before[tenant]}
    assert moved == {tenant for tenant in TENANTS if before[tenant] == "cell-3"}


def test_a_cell_that_is_being_drained_is_a_host_only_if_there_is_no_other() -> None:
    assert set(hosts(away={"cell-2", "cell-3", "cell-4"}).values()) == {"cell-5"}
    assert set(hosts(away={name for names in CELLS for name in names}).values()) == {None}
