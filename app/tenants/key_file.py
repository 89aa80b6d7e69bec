"""An operator's key in a file of one user's, for a stack on the machine of who tries it."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Engine

from app.tenants.changes import issue_key
from app.tenants.keys import presented, same_digest
from models.store.session import connect

NAME = "of the embedded stack"
READ_KEY = "SELECT digest FROM api_keys WHERE id = %s AND tenant_id IS NULL AND revoked_at IS NULL"


def keep_operator_key(engine: Engine, file: Path) -> None:
    """Write a new key into the file, unless the one in it opens this database."""
    if not _opens(engine, file):
        # Readable by its owner from the first byte on; in place all at once.
        draft = file.with_name(f"{file.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as written:
            written.write(f"{issue_key(engine, None, NAME).key}\n")
        draft.replace(file)


def _opens(engine: Engine, file: Path) -> bool:
    try:
        key = presented(file.read_text().strip())
    except (OSError, UnicodeDecodeError):
        return False
    if key is None:
        return False
    with connect(engine) as connection:
        digest = connection.exec_driver_sql(READ_KEY, (key.id,)).scalar()
    return digest is not None and same_digest(bytes(digest), key.digest)
