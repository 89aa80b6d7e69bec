"""What is compared: processes that take on their role, and the same that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.stack.postgres import SUPERUSER
from app.stack.spec import PROJECT_ROOT
from loadtest.isolation_cost import owner_environment
from models.store.roles import DatabaseRole

ASK = """
from models.settings import DatabaseSettings
from models.store.roles import DatabaseRole, tenant_scope
from models.store.session import fetch, open_engine

engine = open_engine(DatabaseSettings(), role=DatabaseRole.API)
for scope in (None, tenant_scope(1)):
    with scope or engine.connect():
        print(fetch(engine, "SELECT current_user AS name")[0].name)
"""


@pytest.mark.parametrize("owner", [False, True])
def test_processes_of_the_owner_take_on_no_role(
    database_url: str, tmp_path: Path, owner: bool
) -> None:
    env = os.environ | {"FAIRLINE_DATABASE_URL": database_url}
    env |= owner_environment(tmp_path) if owner else {}
    argv = (sys.executable, "-c", ASK)
    stdout = subprocess.check_output(argv, cwd=PROJECT_ROOT, env=env, text=True)
    roles = [SUPERUSER, SUPERUSER] if owner else [DatabaseRole.API, DatabaseRole.TENANT]
    assert stdout.split() == roles
