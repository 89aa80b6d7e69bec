"""Changes of a tenant that lives in several cells: made in one of them, copied to the others.

Its terms, limits and keys are copied as they are after the change, which says nothing twice in the
audit log. Dying in between leaves the others as they were: whoever repeats the change copies it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Engine

from app.errors import CellUnavailable, NotFound
from app.policy.placement import Placement
from app.tenants.changes import no_tenant, revoke_key
from app.tenants.keys import SHORT_CHARACTERS
from models.cells.databases import CellDatabases
from models.cells.placements import read_placement
from models.cells.tenant_rows import find_tenant, read_own_rows, write_own_rows
from models.store.errors import StateStoreError
from models.store.session import transaction

logger = logging.getLogger(__name__)

READ_SHARE = "SELECT share FROM tenants WHERE id = %s FOR UPDATE"
#: How often it is copied again because somebody changed something meanwhile.
MOST_TIMES = 5


def copy_changes(name: str, source: Engine, others: Mapping[str, Engine]) -> None:
    """Let the other cells of a tenant have its terms, limits and keys of this one."""
    found = find_tenant(source, name)
    if found is None:
        return
    failed = []
    for cell, engine in others.items():
        try:
            copy_to(found[0], source, engine)
        except StateStoreError as error:
            logger.warning("a change of tenant %s is not in cell %s: %s", name, cell, error)
            failed.append(cell)
    if failed:
        raise CellUnavailable(
            f"Not responding: {', '.join(failed)}. The change was made in the tenant's other cells;"
            " please repeat it."
        )


def copy_to(tenant_id: int, source: Engine, target: Engine) -> None:
    """Copy the tenant's own rows to one cell, unless it has left that."""
    rows = read_own_rows(source, tenant_id)
    for _ in range(MOST_TIMES):
        with transaction(target) as connection:
            # The part of its limits that holds there is decided by its placement.
            share = connection.exec_driver_sql(READ_SHARE, (tenant_id,)).scalar()
            if share is None or not rows["tenants"]:
                return
            write_own_rows(connection, rows, share=share)
        # Somebody else may have changed and copied it meanwhile: the last one to write is right.
        written, rows = rows, read_own_rows(source, tenant_id)
        if rows == written:
            return


@contextmanager
def in_all_cells(databases: CellDatabases, name: str) -> Iterator[Engine]:
    """The database of the tenant's first cell; what is changed there is copied to its others."""
    row = read_placement(databases.registry, name)
    if row is None:
        raise no_tenant(name)
    placement = Placement(row.version, row.weights)
    first, *others = (*placement.admitting, *placement.leaving)
    yield databases.engine(first)
    rest = {cell: databases.engine(cell) for cell in others}
    copy_changes(name, databases.engine(first), rest)


def revoke_everywhere(databases: Mapping[str, Engine], key_id: str) -> datetime:
    """Revoke a key in every database that has it, by cell; when it was revoked first."""
    revoked, failed = [], []
    for cell, engine in databases.items():
        try:
            revoked.append(revoke_key(engine, key_id))
        except NotFound:
            continue
        except StateStoreError as error:
            logger.warning("cell %s: %s", cell, error)
            failed.append(cell)
    if failed:
        raise CellUnavailable(f"Not responding: {', '.join(failed)}. Please repeat it.")
    if not revoked:
        raise NotFound(f"There is no key {key_id[:SHORT_CHARACTERS]!r}.")
    return min(revoked)
