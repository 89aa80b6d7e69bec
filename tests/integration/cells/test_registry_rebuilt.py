"""A registry that is older than its cells, or new, gets its placements from them.

The statements are those of docs/operations.md, *The registry's backup*.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import app.config
from app.cli.cells import cells as cells_group
from app.cli.tenants import tenants as tenants_group
from app.config import Settings
from app.scheduler.maintenance.mover import Mover
from app.scheduler.maintenance.placement_check import PlacementCheck
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.cells.away import read_away
from models.cells.databases import CellDatabases
from models.cells.moves import MoveStep, read_move, read_moves
from models.cells.placements import read_placements
from models.cells.registry import open_registry
from models.settings import DatabaseSettings
from models.store.roles import DatabaseRole
from models.store.session import open_engine
from tests import ROOT
from tests.integration.conftest import fresh_database
from tests.support.database_fixture import DatabaseFixture
from tests.support.several_cells import unreachable

NAMES = ("cell-1", "cell-2", "cell-3")
GROUPS = {"cells": cells_group, "tenants": tenants_group}

FORGET_ALL = "DELETE FROM moves; DELETE FROM placements"
FORGET_SOME = "DELETE FROM moves; DELETE FROM placements WHERE NOT cells ? 'cell-3'"
LOOK = (
    "SELECT share, away FROM tenants LEFT JOIN away_tenants ON tenant_id = id WHERE name = 'acme'"
)
PLACE = """UPDATE placements SET cells = '{"cell-1": 0.25, "cell-2": 0.75}' WHERE tenant = 'acme'"""
RAISE = (
    "UPDATE placements SET version = (extract(epoch FROM now()) * 1000000)::bigint,"
    " changed_at = now()"
)


@dataclass
class Installation:
    """A registry of its own, and three cells."""

    registry_url: str
    urls: dict[str, str]
    registry: DatabaseFixture
    cells: dict[str, DatabaseFixture]

    def type(self, line: str) -> str:
        """What a command says, on both outputs."""
        group, *arguments = line.split()
        done = CliRunner().invoke(GROUPS[group], arguments)
        assert done.exit_code == 0, done.output
        return done.output

    def add(self, *names: str) -> str:
        """Add cells; what is said."""
        return "".join(
            self.type(
                f"cells add {name} --database-url {self.urls[name]} --broker-url amqp://mq1//"
                " --region eu"
            )
            for name in names
        )

    def placed(self) -> dict[str, dict[str, float]]:
        """The placements, as ``tenants where`` shows them."""
        lines = self.type("tenants where").splitlines()[1:]
        return {
            line.split()[0]: {
                cell.split("=")[0]: float(cell.split("=")[1])
                for cell in line.replace(",", " ").split()
                if cell.startswith("cell-")
            }
            for line in lines
        }

    def versions(self) -> dict[str, int]:
        return {row.tenant: row.version for row in read_placements(self.registry.engine)}

    def run_moves(self, tenant: str, step: MoveStep | None, known_seconds: float = 0.0) -> None:
        """Run a move up to this step, or to its end."""
        settings = DatabaseSettings(database_url=self.registry_url, registry_url=self.registry_url)
        registry = open_registry(settings, role=DatabaseRole.SCHEDULER)
        databases = CellDatabases(registry, settings, role=DatabaseRole.SCHEDULER)
        mover = Mover(databases, "a scheduler", known_seconds=known_seconds)
        deadline = time.monotonic() + 30
        while (move := read_move(registry, tenant)) is not None and move.step is not step:
            assert time.monotonic() < deadline, f"the move stays at {move}"
            mover.run_once(time.monotonic())
        self.registry.execute("UPDATE moves SET lease_expires_at = to_timestamp(0)")
        databases.close()
        registry.dispose()

    def check(self) -> None:
        """The schedulers of all cells look into the registry."""
        settings = DatabaseSettings(database_url=self.registry_url, registry_url=self.registry_url)
        databases = CellDatabases(self.registry.engine, settings)
        for cell in self.cells.values():
            cell.leader.run_once(0.0)
            PlacementCheck(cell.engine, cell.leader, databases).run_once(0.0)
        databases.close()

    def away_in(self, name: str) -> set[str]:
        """The tenants that a cell admits nothing for."""
        away = [row.tenant_id for row in read_away(self.cells[name].engine)]
        statement = "SELECT name FROM tenants WHERE id = ANY (%s)"
        return {row.name for row in self.cells[name].query(statement, away)}


@pytest.fixture
def installed(
    postgres: Running[EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Installation]:
    """Tenants of one cell each, one that is spread, and one that is half moved."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in ("registry", *NAMES)]
        opened = [open_engine(DatabaseSettings(database_url=url)) for url in urls]
        for engine in opened:
            stack.callback(engine.dispose)
        own = Settings(database_url=urls[1], registry_url=urls[0], blob_url=str(tmp_path))
        monkeypatch.setattr(app.config, "settings", lambda: own)
        registry, *others = map(DatabaseFixture, opened)
        made = Installation(
            urls[0],
            dict(zip(NAMES, urls[1:], strict=True)),
            registry,
            dict(zip(NAMES, others, strict=True)),
        )
        made.add(*NAMES)
        for name, cell in (
            ("one", "cell-1"),
            ("two", "cell-2"),
            ("three", "cell-3"),
            ("acme", "cell-1"),
            ("half", "cell-1"),
            ("moved", "cell-1"),
        ):
            made.type(f"tenants create {name} --cell {cell}")
        made.type("tenants spread acme --over cell-1=1,cell-2=3")
        made.run_moves("acme", None)
        made.type("tenants move moved --to cell-2")
        made.run_moves("moved", None)
        made.type("tenants move half --to cell-2")
        made.run_moves("half", MoveStep.TRANSFER, known_seconds=60.0)
        assert made.placed()["half"] == {"cell-1": 0.0, "cell-2": 1.0}
        yield made


def look(installed: Installation, tenant: str) -> dict[str, tuple[float, bool | None]]:
    """What the cells say of a tenant: its part, and whether it is away."""
    found = {}
    for name in ("cell-1", "cell-2"):
        for row in installed.cells[name].query(LOOK.replace("acme", tenant)):
            found[name] = (row.share, row.away)
    return found


def rebuild(installed: Installation, *names: str) -> None:
    """Steps 3 to 5, with what steps before have left of the registry."""
    said = installed.add(*names)
    for tenant in ("acme", "half"):
        assert f"not placed, as there is another in cell-1: {tenant}" in said
    assert "moved" not in said
    assert look(installed, "acme") == {"cell-1": (0.25, False), "cell-2": (0.75, False)}
    installed.registry.execute(PLACE)
    parts = look(installed, "half")
    assert (parts["cell-1"][1], parts["cell-2"]) == (True, (1.0, False))
    installed.registry.execute(
        PLACE.replace("acme", "half").replace(
            '{"cell-1": 0.25, "cell-2": 0.75}', json.dumps({"cell-2": 1})
        )
    )
    installed.registry.execute(RAISE)


def assert_right(installed: Installation, before: dict[str, int]) -> None:
    """Placements, versions, and what the cells make of it."""
    assert installed.placed() == {
        "acme": {"cell-1": 0.25, "cell-2": 0.75},
        "half": {"cell-2": 1.0},
        "moved": {"cell-2": 1.0},
        "one": {"cell-1": 1.0},
        "three": {"cell-3": 1.0},
        "two": {"cell-2": 1.0},
    }
    after = installed.versions()
    assert all(after[tenant] > version for tenant, version in before.items())
    listed = [line.split()[:4] for line in installed.type("cells list").splitlines()[1:]]
    assert listed == [[f"cell-{n}", str(n), "eu", "open"] for n in (1, 2, 3)]
    installed.check()
    assert [move.tenant for move in read_moves(installed.registry.engine)] == ["half"]
    installed.run_moves("half", None)
    assert installed.placed()["half"] == {"cell-2": 1.0}
    assert look(installed, "half").keys() == {"cell-2"}
    installed.check()
    assert read_moves(installed.registry.engine) == []
    assert [installed.away_in(name) for name in NAMES] == [set(), set(), set()]


def older(installed: Installation) -> None:
    """As a backup from before everything was moved, but for the cells."""
    installed.registry.execute("DELETE FROM moves; DELETE FROM placements WHERE tenant = 'two'")
    installed.registry.execute(
        """UPDATE placements SET cells = '{"cell-1": 1}', version = 1000
           WHERE tenant IN ('acme', 'half', 'moved')"""
    )


def test_a_restored_registry_is_rebuilt_while_a_cell_is_away(
    installed: Installation, postgres: Running[EmbeddedPostgres]
) -> None:
    before = installed.versions()
    older(installed)
    with unreachable(postgres.service, installed.cells["cell-3"].engine):
        installed.registry.execute(FORGET_SOME)
        rebuild(installed, "cell-1", "cell-2")
    assert_right(installed, before)


def test_a_new_registry_is_built_from_the_cells(installed: Installation) -> None:
    before = installed.versions()
    installed.registry.execute("DELETE FROM cells; DELETE FROM tenant_copies")
    installed.registry.execute(FORGET_ALL)
    rebuild(installed, *NAMES)
    assert_right(installed, before)


def test_tenants_that_cells_sent_away_by_an_older_registry_are_admitted_for_again(
    installed: Installation,
) -> None:
    before = installed.versions()
    older(installed)
    installed.check()
    assert "two" in installed.away_in("cell-2")
    installed.registry.execute(FORGET_ALL)
    rebuild(installed, *NAMES)
    assert_right(installed, before)


def test_the_statements_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    for statement in (FORGET_ALL, FORGET_SOME, LOOK, PLACE, RAISE):
        assert f"`{statement}`" in text
