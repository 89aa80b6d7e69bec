"""``flask cells …``, ``keys …`` and ``tenants …`` with cells, as an operator types them."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine

import app.cli.cells
import app.config
from app.cells.new_tenants import place
from app.cli.cells import cells as cells_group
from app.cli.tenants import tenants as tenants_group
from app.config import Settings
from app.errors import Conflict
from app.stack.environment import COMMANDS
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.stack.spec import PROJECT_ROOT
from app.tenants.changes import create_tenant
from app.tenants.keys import presented
from models.cells.placements import read_placement
from models.cells.registry import (
    TENANTS_OF_A_CELL,
    CellRow,
    identify,
    read_cells,
    read_identity,
)
from tests.support.database_fixture import DatabaseFixture
from tests.support.several_cells import unreachable
from tests.support.typed_commands import BROKER, SECRET, Type, add, add_two


def test_cells_are_added_listed_and_drained(
    type_line: Type,
    urls: list[str],
    databases: list[DatabaseFixture],
    postgres: Running[EmbeddedPostgres],
) -> None:
    create_tenant(databases[0].engine, "old")
    first = add(type_line, "cell-1", urls[0], "--region eu")
    assert first.exit_code == 0 and "number 1, 1 tenants" in first.output
    second = add(type_line, "cell-2", urls[1], "--region eu")
    assert second.exit_code == 0 and "number 2, 0 tenants" in second.output
    assert read_identity(databases[1].engine) == (2, "cell-2")
    assert "cell-1=1" in type_line("tenants where old").output
    listed = type_line("cells list")
    assert [line.split()[:6] for line in listed.output.splitlines()[1:]] == [
        ["cell-1", "1", "eu", "open", "1", "0"],
        ["cell-2", "2", "eu", "open", "0", "0"],
    ]
    assert SECRET not in listed.output + first.output + second.output
    with unreachable(postgres.service, databases[1].engine):
        assert "away" in type_line("cells list").output.splitlines()[2]
    assert type_line("cells drain cell-2").exit_code == 0
    assert [cell.state for cell in read_cells(databases[0].engine)] == ["open", "draining"]
    assert type_line("cells drain cell-2 --undo").exit_code == 0
    assert {cell.state for cell in read_cells(databases[0].engine)} == {"open"}
    assert type_line("cells drain cell-9").exit_code == 1
    acts = databases[0].query("SELECT target, after::text AS after FROM audit_log ORDER BY id")
    assert {row.target for row in acts} >= {"cell-1", "cell-2"}
    assert not any(SECRET in row.after for row in acts)


def test_adding_a_cell_again_changes_its_address(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add_two(type_line, urls)
    assert add(type_line, "cell-2", urls[1], "--region us").exit_code == 0
    [_, cell] = read_cells(databases[0].engine)
    assert (cell.number, cell.region) == (2, "us")
    other = add(type_line, "cell-2", urls[1], "--number 3")
    assert other.exit_code == 1 and "another number" in other.output
    taken = add(type_line, "cell-3", urls[2], "--number 2")
    assert taken.exit_code == 1 and "number 2" in taken.output
    copied = add(type_line, "cell-3", urls[1])
    assert copied.exit_code == 1 and "database of cell-2" in copied.output
    assert len(read_cells(databases[0].engine)) == 2
    ids = "SELECT last_value FROM tenants_id_seq"
    before = databases[1].query(ids)
    assert add(type_line, "cell-3", urls[1], "--number 3").exit_code == 1
    assert databases[1].query(ids) == before
    # What was refused has changed nothing.
    assert [read_identity(one.engine) for one in databases[1:]] == [(2, "cell-2"), (0, "")]
    assert "number 3" in add(type_line, "cell-3", urls[2]).output


def test_adding_a_cell_again_leaves_the_placements_of_its_tenants(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    """A spread has closed the cell to processes that know this version, before it flips."""
    add_two(type_line, urls)
    type_line("tenants create old --cell cell-1")
    create_tenant(databases[0].engine, "unplaced")
    before = read_placement(databases[0].engine, "old")
    again = add(type_line, "cell-1", urls[0], "--region us")
    assert again.exit_code == 0 and "number 1, 2 tenants" in again.output
    assert read_placement(databases[0].engine, "old") == before
    assert "cell-1=1" in type_line("tenants where unplaced").output


@pytest.mark.parametrize(
    ("name", "url", "broker"),
    [
        ("Cell", "postgresql+psycopg2://h/d", BROKER),
        ("cell-2", "postgresql+psycopg2://a:1,b:x/d", BROKER),
        ("cell-2", "postgresql+psycopg2://h/d", "http://mq"),
    ],
)
def test_wrong_cells_are_refused(type_line: Type, name: str, url: str, broker: str) -> None:
    done = type_line(f"cells add {name} --database-url {url} --broker-url {broker}")
    assert done.exit_code == 2, done.output


def test_tenants_are_created_in_the_cell_with_the_fewest_or_the_named_one(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add_two(type_line, urls)
    for name, more in (("one", ""), ("two", ""), ("three", "--cell cell-2"), ("four", "")):
        done = type_line(f"tenants create {name} {more}")
        assert done.exit_code == 0, done.output
    names = [
        [row.name for row in database.query("SELECT name FROM tenants ORDER BY id")]
        for database in databases[:2]
    ]
    assert names == [["one", "four"], ["two", "three"]]
    [row] = databases[1].query("SELECT min(id) AS id FROM tenants")
    assert row.id > 2 * TENANTS_OF_A_CELL
    for line in ("tenants create one", "tenants create one --cell cell-2"):
        again = type_line(line)
        assert again.exit_code == 1 and "already" in again.output, line
    assert type_line("tenants ensure one").exit_code == 0
    type_line("cells drain cell-2")
    assert type_line("tenants create five --cell cell-2").exit_code == 1
    assert type_line("tenants create five --cell cell-9").exit_code == 1
    shown = [line.split()[:2] for line in type_line("tenants where").output.splitlines()[1:]]
    assert shown == [
        ["four", "cell-1=1"],
        ["one", "cell-1=1"],
        ["three", "cell-2=1"],
        ["two", "cell-2=1"],
    ]
    assert type_line("tenants where nobody").exit_code == 1


def test_a_tenant_that_cannot_be_created_is_placed_nowhere(
    type_line: Type, urls: list[str]
) -> None:
    add_two(type_line, urls)
    for line in ("create one --tier free --weight 2", "create _one", "ensure _one"):
        assert type_line(f"tenants {line}").exit_code == 1, line
    assert len(type_line("tenants where").output.splitlines()) == 1
    assert type_line("tenants create one --cell cell-2").exit_code == 0


def test_a_key_is_shown_although_another_cell_of_its_tenant_is_away(
    type_line: Type,
    urls: list[str],
    databases: list[DatabaseFixture],
    postgres: Running[EmbeddedPostgres],
) -> None:
    add_two(type_line, urls)
    type_line("tenants create one --cell cell-1")
    databases[0].execute("""UPDATE placements SET cells = '{"cell-1": 1, "cell-2": 1}'""")
    with unreachable(postgres.service, databases[1].engine):
        done = type_line("keys issue --tenant one")
    assert done.exit_code == 1 and "Not responding: cell-2" in done.stderr
    [row] = databases[0].query("SELECT id FROM api_keys")
    assert f"keys revoke {row.id}" in done.stderr
    sent = presented(done.stdout.strip())
    assert sent is not None and sent.id == row.id


def test_operator_keys_are_listed_also_of_a_database_that_is_no_cell(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add(type_line, "cell-1", urls[1])
    type_line("tenants create one")
    for line in ("keys issue --operator", "keys issue --tenant one"):
        assert type_line(line).exit_code == 0
    [operators] = databases[0].query("SELECT id FROM api_keys")
    [tenants] = databases[1].query("SELECT id FROM api_keys")

    def listed(line: str) -> list[str]:
        return [shown.split()[0] for shown in type_line(line).output.splitlines()[1:]]

    assert listed("keys list") == [operators.id, tenants.id]
    assert listed("keys list --tenant one") == [tenants.id]
    add(type_line, "cell-2", urls[0])
    assert sorted(listed("keys list")) == sorted([operators.id, tenants.id]), "each of them once"


def test_draining_moves_the_tenants_of_a_cell(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    for number, url in enumerate(urls, 1):
        add(type_line, f"cell-{number}", url)
    type_line("tenants create one --cell cell-1")
    type_line("tenants create two --cell cell-2")
    done = type_line("cells drain cell-1 --move")
    assert done.exit_code == 0 and "one: to cell-3" in done.output, done.output
    rows = databases[0].query("SELECT tenant, wanted FROM moves")
    assert [(row.tenant, row.wanted) for row in rows] == [("one", {"cell-1": 0, "cell-3": 1.0})]


def test_draining_names_the_tenants_that_are_on_their_way_there(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    for number, url in enumerate(urls, 1):
        add(type_line, f"cell-{number}", url)
    for name in ("coming", "turned", "spread"):
        type_line(f"tenants create {name} --cell cell-2")
    type_line("tenants move coming --to cell-1")
    type_line("tenants move turned --to cell-1")
    type_line("tenants move turned --cancel")
    type_line("tenants spread spread --over cell-1=1,cell-2=1")
    done = type_line("cells drain cell-1 --move")
    assert done.exit_code == 0, done.output
    named = [line.split(":")[0] for line in done.output.splitlines() if "on its way" in line]
    assert sorted(named) == ["coming", "spread"]
    assert "tenants move coming --cancel" in done.output
    assert len(databases[0].query("SELECT tenant FROM moves")) == 3, "nothing else is moved"


def test_draining_divides_the_tenants_over_the_other_cells(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    for number, url in enumerate(urls, 1):
        add(type_line, f"cell-{number}", url)
    for name in ("a", "b", "c", "d", "e"):
        type_line(f"tenants create {name} --cell cell-1")
    type_line("tenants create there --cell cell-2")
    assert type_line("tenants move a --to cell-3").exit_code == 0
    done = type_line("cells drain cell-1 --move")
    assert done.exit_code == 0 and "'a' is being moved" in done.output, done.output
    rows = databases[0].query("SELECT wanted FROM moves")
    targets = Counter(cell for row in rows for cell, weight in row.wanted.items() if weight > 0)
    assert targets == {"cell-2": 2, "cell-3": 3}, "three tenants in each"
    type_line("tenants create new")
    assert "cell-2=1" in type_line("tenants where new").output, "nobody is counted in cell-1"
    assert type_line("tenants create next").exit_code == 0
    assert "cell-3=1" in type_line("tenants where next").output


def test_only_the_first_cell_may_have_had_tenants_before(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    for database in databases[:2]:
        create_tenant(database.engine, "demo")
    assert add(type_line, "cell-1", urls[0]).exit_code == 0
    second = add(type_line, "cell-2", urls[1])
    assert second.exit_code == 1 and "has tenants" in second.output
    assert [cell.name for cell in read_cells(databases[0].engine)] == ["cell-1"]
    assert read_identity(databases[1].engine) == (0, "")
    databases[1].execute("DELETE FROM tenants")
    assert add(type_line, "cell-2", urls[1]).exit_code == 0
    # One that was moved here has the id that it had.
    databases[1].execute("INSERT INTO tenants (id, name) OVERRIDING SYSTEM VALUE VALUES (7, 'old')")
    assert add(type_line, "cell-2", urls[1], "--region us").exit_code == 0


def test_a_database_keeps_the_number_that_was_written_before_the_command_died(
    type_line: Type,
    urls: list[str],
    databases: list[DatabaseFixture],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own commit comes first: the registry must not give it another."""
    add_two(type_line, urls)

    def die_after(engine: Engine, cell: CellRow, *, first: bool) -> None:
        identify(engine, cell, first=first)
        raise SystemExit(9)

    with monkeypatch.context() as patched:
        patched.setattr(app.cli.cells, "identify", die_after)
        assert add(type_line, "cell-3", urls[2], "--number 7").exit_code == 9
    assert [cell.name for cell in read_cells(databases[0].engine)] == ["cell-1", "cell-2"]
    assert read_identity(databases[2].engine) == (7, "cell-3")
    again = add(type_line, "cell-4", urls[2])
    assert again.exit_code == 0 and "number 7" in again.output
    assert read_identity(databases[2].engine) == (7, "cell-4")


def test_a_tenant_that_is_being_created_is_created_once(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add_two(type_line, urls)
    registry = databases[0].engine
    engines = {"cell-1": registry, "cell-2": databases[1].engine}
    # Neither has created it yet; by now the other cell has fewer tenants.
    assert place(registry, engines.__getitem__, "acme") == "cell-1"
    assert place(registry, engines.__getitem__, "acme") == "cell-1"
    with pytest.raises(Conflict, match="being created"):
        place(registry, engines.__getitem__, "acme", "cell-2")
    databases[0].execute("UPDATE placements SET changed_at = now() - interval '2 minutes'")
    assert place(registry, engines.__getitem__, "acme", "cell-2") == "cell-2"


def test_a_database_that_was_not_migrated_is_an_error_of_one_line(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add_two(type_line, urls)
    databases[1].execute("DROP TABLE api_keys")
    databases[2].execute("DROP TABLE cell_identity")
    for line in (
        "keys list",
        f"cells add cell-3 --database-url {urls[2]} --broker-url {BROKER}",
    ):
        done = type_line(line)
        assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1, done.output
        assert "does not exist): flask --app app migrate" in done.stderr
    databases[0].execute("ALTER TABLE cells DROP COLUMN region")
    assert "has not been migrated" in type_line("cells list").stderr


def test_a_tenant_of_a_cell_that_the_registry_does_not_know_is_an_error_of_one_line(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    """As after the registry was restored."""
    add_two(type_line, urls)
    type_line("tenants create one --cell cell-2")
    databases[0].execute("DELETE FROM cells WHERE name = 'cell-2'")
    done = type_line("keys issue --tenant one")
    assert done.exit_code == 1, done.output
    assert done.stderr == "Error: there is no cell 'cell-2': see cells list and tenants where\n"


def test_without_a_registry_there_are_no_cells(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Settings(database_url=urls[0], registry_url="", blob_url=str(tmp_path))
    monkeypatch.setattr(app.config, "settings", lambda: own)
    listed = CliRunner().invoke(cells_group, ["list"])
    assert listed.exit_code == 1 and "FAIRLINE_REGISTRY_URL" in listed.output
    assert CliRunner().invoke(tenants_group, ["create", "acme"]).exit_code == 0
    assert CliRunner().invoke(tenants_group, ["create", "b", "--cell", "x"]).exit_code == 1


def test_a_migration_creates_no_tenant_in_a_cell(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    """`make up` migrates at each start: a tenant that was moved away would be there twice."""
    add(type_line, "cell-1", urls[0])
    for url in (urls[0], urls[2]):
        subprocess.run(
            (COMMANDS / "flask", "--app", "app", "migrate", "--tenant", "demo"),
            cwd=PROJECT_ROOT,
            env={**os.environ, "FAIRLINE_DATABASE_URL": url},
            check=True,
        )
    tenants = "SELECT 1 FROM tenants"
    assert (len(databases[0].query(tenants)), len(databases[2].query(tenants))) == (0, 1)
