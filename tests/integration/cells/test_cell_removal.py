"""``flask cells remove``: what keeps a cell from it, what is asked before, and said after."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.cli import cells_remove
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.blobs import cell_key, open_blobs
from models.cells.registry import (
    read_cells,
    read_identity,
    remove_cell,
)
from tests.support.database_fixture import DatabaseFixture
from tests.support.several_cells import unreachable
from tests.support.typed_commands import Type, add, add_two

#: A request for the other cell.
TAKEN_IN = """
    INSERT INTO intake_jobs (id, job_ids, tenant, tenant_id, cell, body)
    VALUES (gen_random_uuid(), '{}', 'acme', 1, 'cell-1', '')
"""


def test_a_cell_is_removed_once_nobody_lives_there(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add_two(type_line, urls)
    type_line("tenants create one --cell cell-2")
    assert type_line("cells remove cell-9").exit_code == 1
    assert "not drained" in type_line("cells remove cell-2").output
    type_line("cells drain cell-2")
    refused = type_line("cells remove cell-2")
    assert refused.exit_code == 1 and "live in cell-2: one." in refused.output
    databases[0].execute("""UPDATE placements SET cells = '{"cell-1": 1}'""")
    databases[0].execute("""INSERT INTO moves (tenant, wanted) VALUES ('one', '{"cell-2": 1}')""")
    assert "moved to cell-2" in type_line("cells remove cell-2").output
    databases[0].execute("DELETE FROM moves")
    type_line("cells drain cell-2 --undo")
    assert type_line("cells remove cell-2").exit_code == 1
    type_line("cells drain cell-2")
    done = type_line("cells remove cell-2")
    assert done.exit_code == 0, done.output
    assert [cell.name for cell in read_cells(databases[0].engine)] == ["cell-1"]


@pytest.mark.parametrize("state", ["empty", "jobs", "away", "given up"])
def test_the_blobs_of_a_removed_cell_are_forgotten_only_if_it_has_no_jobs(
    type_line: Type,
    urls: list[str],
    databases: list[DatabaseFixture],
    postgres: Running[EmbeddedPostgres],
    tmp_path: Path,
    state: str,
) -> None:
    """One that is lost may come back, with jobs whose payloads are in the store."""
    add_two(type_line, urls)
    blobs = open_blobs(str(tmp_path))
    for number in (1, 2):
        blobs.put(cell_key(number), b"")
    type_line("cells drain cell-2")
    if state == "jobs":
        databases[1].submit()
    with ExitStack() as stack:
        if state in ("away", "given up"):
            stack.enter_context(unreachable(postgres.service, databases[1].engine))
        more = " --forget-blobs" if state == "given up" else ""
        done = type_line(f"cells remove cell-2{more}")
    assert done.exit_code == 0, done.output
    kept = state in ("jobs", "away")
    marks = {cell_key(1), cell_key(2)} if kept else {cell_key(1)}
    assert {entry.key for entry in blobs.entries()} == marks
    assert ("delete cells/2 there" in done.stderr) is kept


def test_a_cell_is_removed_although_the_blob_store_is_away(
    type_line: Type, urls: list[str], tmp_path: Path
) -> None:
    add_two(type_line, urls)
    type_line("cells drain cell-2")
    tmp_path.rmdir()
    done = type_line("cells remove cell-2")
    assert done.exit_code == 0 and "Delete cells/2" in done.stderr


def test_the_number_of_a_removed_cell_is_given_to_no_other(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    """Tenants and jobs that were moved away have it in their ids."""
    add_two(type_line, urls)
    type_line("cells drain cell-2")
    assert type_line("cells remove cell-2").exit_code == 0
    reused = add(type_line, "cell-2", urls[2], "--number 2")
    assert reused.exit_code == 1 and "removed" in reused.output
    assert read_identity(databases[2].engine) == (0, "")
    assert "number 3" in add(type_line, "cell-2", urls[2]).output
    back = add(type_line, "cell-9", urls[1])
    assert back.exit_code == 0 and "number 2" in back.output, "its own database has it still"
    type_line("cells drain cell-9")
    assert type_line("cells remove cell-9").exit_code == 0, "twice"


def test_a_cell_that_keeps_submissions_of_others_is_not_removed(
    type_line: Type,
    urls: list[str],
    databases: list[DatabaseFixture],
    postgres: Running[EmbeddedPostgres],
) -> None:
    add_two(type_line, urls)
    type_line("cells drain cell-2")
    databases[1].execute(TAKEN_IN)
    refused = type_line("cells remove cell-2")
    assert refused.exit_code == 1
    assert "keeps submissions for cells that are away (1)" in refused.output
    with unreachable(postgres.service, databases[1].engine):
        lost = type_line("cells remove cell-2")
    assert lost.exit_code == 0 and "does not answer" in lost.stderr


def test_a_cell_that_alone_knows_ids_is_removed_once_that_is_confirmed(
    type_line: Type, urls: list[str], databases: list[DatabaseFixture]
) -> None:
    add_two(type_line, urls)
    type_line("cells drain cell-2")
    databases[1].execute(TAKEN_IN)
    databases[1].execute("UPDATE intake_jobs SET alias_of = '{}'")
    asked = type_line("cells remove cell-2")
    assert asked.exit_code == 1 and "same idempotency key (1)" in asked.output
    assert len(read_cells(databases[0].engine)) == 2
    done = type_line("cells remove cell-2 --yes")
    assert done.exit_code == 0 and done.stderr == ""


def test_what_comes_to_a_cell_while_it_is_removed_is_reported(
    type_line: Type,
    urls: list[str],
    databases: list[DatabaseFixture],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """API processes know the cell for up to a second more."""
    add_two(type_line, urls)
    type_line("cells drain cell-2")

    def take_in(_: Engine, name: str) -> bool:
        databases[1].execute(TAKEN_IN)
        return remove_cell(databases[0].engine, name)

    monkeypatch.setattr(cells_remove, "remove_cell", take_in)
    done = type_line("cells remove cell-2")
    assert done.exit_code == 0 and "is removed" in done.stdout
    assert "cell-2 may have been given submissions meanwhile" in done.stderr
