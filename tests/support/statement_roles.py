"""Statements of the application that tests run in their own process get the role they would have.

Tests connect as the owner of the tables, who may do everything. So that a privilege that is missing
is found, what the scheduler, a worker or the API sends runs in that one's role; what a test itself
sends runs as the owner.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from sqlalchemy import Engine, event

from app.stack.spec import PROJECT_ROOT
from models.store.roles import ROLL_BACK_TO, SET_ROLE, DatabaseRole

API_PACKAGES = ("admission", "api", "cells", "cli", "console", "reads", "server", "tenants")
ROLES = {
    "app/scheduler/": DatabaseRole.SCHEDULER,
    "tasks/": DatabaseRole.WORKER,
    **{f"app/{name}/": DatabaseRole.API for name in API_PACKAGES},
}
PREFIXES = tuple(SET_ROLE.format(role) for role in (*DatabaseRole, "none"))
TESTS = f"{PROJECT_ROOT / 'tests'}/"
FOLDERS = {str(PROJECT_ROOT / folder) + "/": role for folder, role in ROLES.items()}


def role_of(frame: FrameType | None) -> DatabaseRole | None:
    """The role of whoever a test called; None: the test itself sends it."""
    found = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(TESTS):
            break
        for folder, role in FOLDERS.items():
            if file.startswith(folder):
                found = role
        frame = frame.f_back
    return found


def without_role(statement: str) -> str:
    """The statement as it was sent."""
    return statement.partition("; ")[2] if statement.startswith(PREFIXES) else statement


def run_in_roles(engine: Engine) -> None:
    """Let statements begin with the role of whoever sends them, unless they name one."""

    def begin_with_role(
        _connection: Any,
        _cursor: Any,
        statement: str,
        parameters: Any,
        _context: Any,
        _executemany: bool,
    ) -> tuple[str, Any]:
        role = role_of(sys._getframe(1))
        if role is None or statement.startswith((*PREFIXES, ROLL_BACK_TO)):
            return statement, parameters
        return f"{SET_ROLE.format(role)}; {statement}", parameters

    event.listen(engine, "before_cursor_execute", begin_with_role, retval=True)
