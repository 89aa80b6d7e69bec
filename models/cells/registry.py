"""The registry of cells: which there are, and how to reach them.

Any migrated database of Fairline can be the registry: that of a cell, or one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from models.settings import DatabaseSettings
from models.store.roles import DatabaseRole
from models.store.session import connect, execute, fetch, open_engine, transaction

#: Ids of tenants of a cell begin here, times its number: no two cells give out the same.
TENANTS_OF_A_CELL = 10**12
MOST_CELLS = 4095
#: Connections that a process keeps to the registry.
REGISTRY_CONNECTIONS = 2

COLUMNS = "name, number, region, database_url, broker_url, read_database_url, state"
READ_CELLS = f"SELECT {COLUMNS} FROM cells ORDER BY number"
#: The lowest number that no cell has or had. Two who ask at a time get the same: adding the second
#: fails.
FREE_NUMBER = f"""
    SELECT min(free) AS number FROM generate_series(1, {MOST_CELLS}) AS free
    WHERE free NOT IN (SELECT number FROM cells UNION ALL SELECT number FROM removed_cells)
"""
WAS_REMOVED = "SELECT EXISTS (SELECT FROM removed_cells WHERE number = %(number)s)"
ADD_CELL = f"""
    INSERT INTO cells ({COLUMNS})
    VALUES (%(name)s, %(number)s, %(region)s, %(database_url)s, %(broker_url)s,
            %(read_database_url)s, 'open')
    ON CONFLICT (name) DO UPDATE
    SET region = excluded.region, database_url = excluded.database_url,
        broker_url = excluded.broker_url, read_database_url = excluded.read_database_url,
        changed_at = now()
    WHERE cells.number = excluded.number
    RETURNING {COLUMNS}
"""
SET_STATE = "UPDATE cells SET state = %(state)s, changed_at = now() WHERE name = %(name)s"
#: Of one that is drained: nothing new is placed there. Its number stays its own: tenants and jobs
#: that were moved elsewhere have it in their ids.
REMOVE_CELL = """
    WITH removed AS (
        DELETE FROM cells
        WHERE name = %(name)s AND state = 'draining'
          AND NOT EXISTS (SELECT FROM placements WHERE placements.cells ? %(name)s)
          AND NOT EXISTS (SELECT FROM moves WHERE moves.wanted ? %(name)s)
        RETURNING number, name
    ), noted AS (
        INSERT INTO removed_cells (number, name) SELECT number, name FROM removed
        ON CONFLICT DO NOTHING
    )
    SELECT number FROM removed
"""
SET_IDENTITY = """
    INSERT INTO cell_identity (number, name) VALUES (%(number)s, %(name)s)
    ON CONFLICT (one) DO UPDATE SET name = excluded.name
    WHERE cell_identity.number = excluded.number
"""
READ_IDENTITY = "SELECT number, name FROM cell_identity"
#: Tenants that got their ids before the cell had its number.
OTHER_IDS = """
    SELECT count(*) AS tenants FROM tenants
    WHERE NOT EXISTS (SELECT FROM cell_identity)
      AND (id < %(first)s OR id >= %(first)s + %(most)s)
"""
#: Never back: numbers that were given out are not given out again.
RAISE_TENANT_IDS = """
    SELECT setval('tenants_id_seq', %(first)s, false)
    FROM tenants_id_seq WHERE last_value < %(first)s
"""


class CellRow(NamedTuple):
    """A cell as the registry knows it."""

    name: str
    number: int
    region: str
    database_url: str
    broker_url: str
    read_database_url: str
    #: ``open`` or ``draining``.
    state: str


class OtherCell(Exception):
    """This database is of another cell, or the name or number belongs to another."""


def open_registry(
    settings: DatabaseSettings, *, process: str = "fairline", role: DatabaseRole | None = None
) -> Engine:
    """An engine for the registry; ``registry_url`` must be set."""
    own = settings.model_copy(
        update={"database_url": settings.registry_url, "db_pool_size": REGISTRY_CONNECTIONS}
    )
    return open_engine(own, process=process, role=role)


def read_cells(registry: Engine) -> list[CellRow]:
    """All cells, by number."""
    return [CellRow._make(row) for row in fetch(registry, READ_CELLS)]


def free_number(registry: Engine) -> int:
    """The lowest number that no cell has, nor one that was removed."""
    [row] = fetch(registry, FREE_NUMBER)
    if row.number is None:
        raise OtherCell(f"all {MOST_CELLS} numbers of cells were given out")
    return int(row.number)


def add_cell(
    registry: Engine,
    cell: CellRow,
    *,
    number: int | None = None,
    had: int = 0,
    write_number: Callable[[CellRow], None] = lambda _: None,
) -> CellRow:
    """Add a cell, or change how it is reached; with the lowest free number if none is given.

    ``had``: the number that the cell has in the registry, or else in its database; 0: none.
    ``write_number`` writes it there, while nobody else can be given it, and not at all if another
    cell has it. Dying between that commit and ours leaves a database with a number that it keeps
    when it is added again.
    """
    number = number or free_number(registry)
    parameters = {**cell._asdict(), "number": number}
    try:
        with transaction(registry) as connection:
            if number != had and connection.exec_driver_sql(WAS_REMOVED, parameters).scalar_one():
                raise OtherCell(f"a cell that was removed had the number {number}")
            row = connection.exec_driver_sql(ADD_CELL, parameters).one_or_none()
            if row is None:
                raise OtherCell(f"the cell {cell.name} has another number")
            added = CellRow._make(row)
            write_number(added)
    except IntegrityError:
        raise OtherCell(f"another cell has the number {number}") from None
    return added


def set_cell_state(registry: Engine, name: str, state: str) -> bool:
    """Open or draining; whether there is such a cell."""
    return execute(registry, SET_STATE, {"name": name, "state": state}) > 0


def remove_cell(registry: Engine, name: str) -> bool:
    """Forget a cell that is being drained; False while a tenant lives there or is moved there."""
    return bool(fetch(registry, REMOVE_CELL, {"name": name}))


def identify(engine: Engine, cell: CellRow, *, first: bool) -> None:
    """Write into a cell's database which cell it is.

    Ids of its tenants begin at a number of its own, unless it is the ``first`` cell: that one had
    tenants before there were cells. Another one must not: two cells would have given out one id.
    """
    ids = {"first": cell.number * TENANTS_OF_A_CELL + 1, "most": TENANTS_OF_A_CELL}
    with transaction(engine) as connection:
        if not first and connection.exec_driver_sql(OTHER_IDS, ids).scalar_one():
            raise OtherCell(
                f"the database of {cell.name} has tenants, which only the first cell may have"
            )
        write_identity(connection, cell)
        if not first:  # last: a sequence is not set back if the rest is refused
            connection.exec_driver_sql(RAISE_TENANT_IDS, ids)


def write_identity(connection: Connection, cell: CellRow) -> None:
    done = connection.exec_driver_sql(SET_IDENTITY, {"number": cell.number, "name": cell.name})
    if not done.rowcount:
        raise OtherCell(f"the database of {cell.name} is that of another cell")


def read_identity(engine: Engine) -> tuple[int, str]:
    """The number and name of the cell whose database this is; 0 and nothing: there are no cells."""
    with connect(engine) as connection:
        row = connection.exec_driver_sql(READ_IDENTITY).one_or_none()
    return (0, "") if row is None else (int(row.number), str(row.name))
