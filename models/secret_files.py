"""Secrets from files, as containers are given them: a file in ``/run/secrets`` per variable.

Its name is the variable's in lower case, ``fairline_database_url``; the environment comes first.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Where Docker and Compose put secrets.
FOLDER = Path("/run/secrets")


def secrets_folder() -> Path | None:
    """The folder, if there is one that this process can read."""
    return FOLDER if os.access(FOLDER, os.R_OK | os.X_OK) else None


def read_secret(variable: str) -> str:
    """The variable's value, else that of its file; empty if there is neither."""
    if (value := os.environ.get(variable)) is not None:
        return value
    file = FOLDER / variable.lower()
    return file.read_text().strip() if file.is_file() else ""
