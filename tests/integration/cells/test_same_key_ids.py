"""Two cells may have given out API keys with the same id: each stands for its own tenant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.cells.copied_callers import CopiedCallers
from app.errors import Unauthenticated
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.keys import presented
from models.cells.copies import copy_tenants
from tests.integration.conftest import fresh_database
from tests.support.installation import Installation, installed
from tests.support.several_cells import unreachable
from tests.support.waiting import wait_for


@pytest.fixture
def cells(postgres: Running[EmbeddedPostgres], tmp_path: Path) -> Iterator[Installation]:
    """Two cells."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        yield stack.enter_context(installed(urls, tmp_path))


@pytest.fixture
def keys(cells: Installation) -> dict[str, str]:
    """A tenant in each cell, and their keys, which have the same id."""
    found = {"first": cells.tenant("first", "cell-1")}
    second = presented(cells.tenant("second", "cell-2"))
    found["second"] = found["first"][:-32] + "x" * 32
    same = presented(found["second"])
    assert second is not None and same is not None
    cells.databases["cell-2"].execute(
        "UPDATE api_keys SET id = %s, digest = %s WHERE id = %s", same.id, same.digest, second.id
    )
    cells.refresh()
    return found


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_each_key_is_its_own_tenants(
    cells: Installation, keys: dict[str, str], order: tuple[str, str]
) -> None:
    for name in order * 2:
        answer = cells.call(keys[name], "GET", "/tenant")
        assert answer.status_code == 200, answer.text
        assert answer.get_json()["name"] == name
    assert cells.call(keys["first"][:-32] + "y" * 32, "GET", "/tenant").status_code == 401


def test_a_session_of_such_a_key_is_nobodys(cells: Installation, keys: dict[str, str]) -> None:
    sent = presented(keys["first"])
    assert sent is not None
    for key in keys.values():
        assert cells.call(key, "GET", "/tenant").status_code == 200
    with pytest.raises(Unauthenticated, match="Two API keys"):
        cells.router.keys.of_id(sent.id)


def test_one_cell_that_is_away_does_not_give_a_key_to_the_other(
    cells: Installation, keys: dict[str, str], postgres: Running[EmbeddedPostgres]
) -> None:
    with unreachable(postgres.service, cells.databases["cell-2"].engine):
        cells.router.suspect("cell-2")
        wait_for(lambda: cells.router.is_away("cell-2"))
        assert cells.call(keys["first"], "GET", "/tenant").status_code == 200
        assert cells.call(keys["second"], "GET", "/tenant").status_code == 503
    wait_for(lambda: not cells.router.is_away("cell-2"))
    # That nobody answered is remembered for a second.
    wait_for(lambda: cells.call(keys["second"], "GET", "/tenant").status_code == 200)
    assert cells.call(keys["second"], "GET", "/tenant").get_json()["name"] == "second"


def test_copies_of_both_are_told_apart(cells: Installation, keys: dict[str, str]) -> None:
    for name, cell in (("first", "cell-1"), ("second", "cell-2")):
        engine = cells.databases[cell].engine
        assert copy_tenants(cells.registry, cell, engine, [cells.tenant_id(name, cell)]) == 1
    copies = CopiedCallers(cells.registry, 2.0)
    for name, cell in (("first", "cell-1"), ("second", "cell-2")):
        found = copies.find(f"Bearer {keys[name]}")
        assert found is not None and found.cell == cell
        assert found.caller.tenant is not None and found.caller.tenant.name == name
    with pytest.raises(Unauthenticated):
        copies.find(f"Bearer {keys['first'][:-32]}{'y' * 32}")
