"""Whoever adds a table says what a move of a tenant does with its rows."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import BigInteger, Column, MetaData, Table, Text

from models.cells.moved_rows import JOB_TABLES, MOVED, REMOVE_TENANT, REMOVED
from models.cells.tenant_rows import ON_MOVE, OnMove
from models.jobs.remove_tenant import TABLES
from models.schema import Base

#: Columns by which a row is somebody's.
OWNERS = ("tenant_id", "tenant", "job_id")


def faults(metadata: MetaData) -> Iterator[str]:
    """What is not said, or cannot be right."""
    for table in metadata.tables.values():
        what = ON_MOVE.get(table.name)
        if what is None:
            yield f"{table.name}: nobody says what a move does with it"
        elif what is OnMove.NONE and set(OWNERS) & set(table.columns.keys()):
            yield f"{table.name}: its rows are a tenant's"


def test_a_move_knows_every_table() -> None:
    assert list(faults(Base.metadata)) == []
    assert set(ON_MOVE) == set(Base.metadata.tables)


def test_a_table_that_was_forgotten_is_seen() -> None:
    planted = MetaData()
    for table in Base.metadata.tables.values():
        table.to_metadata(planted)
    Table("reminders", planted, Column("tenant_id", BigInteger), Column("text", Text))
    Table("circuits", planted, Column("tenant_id", BigInteger), extend_existing=True)
    assert list(faults(planted)) == [
        "circuits: its rows are a tenant's",
        "reminders: nobody says what a move does with it",
    ]


def test_what_is_said_is_done() -> None:
    def said(*what: OnMove) -> set[str]:
        return {name for name, one in ON_MOVE.items() if one in what}

    with_job = {JOB_TABLES.jobs.name, *(table.name for table, _ in JOB_TABLES.others)}
    assert with_job == said(OnMove.WITH_JOB)
    assert {moved.table.name for moved in MOVED} - {"applications"} == said(OnMove.MOVED)
    assert set(REMOVED) == said(OnMove.COPIED, OnMove.LEFT)
    removed = " ".join(REMOVE_TENANT)
    for name in said(OnMove.OWN, OnMove.SUMMED) - {"tallies"}:
        assert f"DELETE FROM {name} " in removed, name


def test_a_move_leaves_nothing_that_a_deletion_removes() -> None:
    """A tenant that is deleted and one that moves leave the same tables empty."""
    left = {name for name, what in ON_MOVE.items() if what in (OnMove.KEPT, OnMove.NONE)}
    assert not left & set(TABLES)
