"""Database roles: what a process may do, and the tenant that its statements are limited to.

A process connects in its role, whatever its login. Within :func:`tenant_scope` every statement
carries, in the same message, the role ``fairline_tenant`` and the tenant's id, both for its
transaction only: row-level security then shows the rows of that tenant alone. So nothing depends on
the state of a session, and a pooled connection is never left in another role.

The scope is that of a thread or greenlet: what a group writes for many callers, by a thread of its
own, is outside of it. The application's own checks come first; this is the second line. It is no
protection from somebody who can send statements of their own: those can leave the role.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sqlalchemy import Engine


class DatabaseRole(StrEnum):
    """The roles that migration 0023 makes; none of them can log in."""

    API = "fairline_api"
    SCHEDULER = "fairline_scheduler"
    WORKER = "fairline_worker"
    TENANT = "fairline_tenant"


SET_ROLE = "SELECT set_config('role', '{}', true)"
#: For what PostgreSQL shows a login about its own sessions.
AS_LOGIN = f"{SET_ROLE.format('none')}; "


#: All that a transaction takes after an error. It has the role of its savepoint then.
ROLL_BACK_TO = "ROLLBACK TO "


class StatementScope(NamedTuple):
    """What the statements of a thread or greenlet are limited to."""

    #: What they begin with; empty: they run in the role of the process.
    prefix: str = ""
    #: None: no tenant.
    tenant_id: int | None = None


EVERY_TENANT = StatementScope()
_scope: ContextVar[StatementScope] = ContextVar("fairline_scope", default=EVERY_TENANT)


def set_tenant(tenant_id: int | None) -> None:
    """Limit what follows in this thread or greenlet to a tenant; None: do not."""
    _scope.set(EVERY_TENANT if tenant_id is None else scope_of(tenant_id))


def scope_of(tenant_id: int) -> StatementScope:
    """The scope of one tenant."""
    tenant = f"set_config('fairline.tenant', '{int(tenant_id)}', true)"
    return StatementScope(f"{SET_ROLE.format(DatabaseRole.TENANT)}, {tenant}; ", tenant_id)


def scoped_tenant() -> int | None:
    """The tenant that statements are limited to; None: to none."""
    return _scope.get().tenant_id


def is_of_another(tenant_id: int) -> bool:
    """Whether this is not the tenant of the scope: for what a group reads or writes for many."""
    limited_to = _scope.get().tenant_id
    return limited_to is not None and limited_to != tenant_id


@contextmanager
def _within(scope: StatementScope) -> Iterator[None]:
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def tenant_scope(tenant_id: int) -> AbstractContextManager[None]:
    """Limit what is read and changed within to a tenant."""
    return _within(scope_of(tenant_id))


def every_tenant() -> AbstractContextManager[None]:
    """Within a tenant's scope: for what is about others too, such as sums."""
    return _within(EVERY_TENANT)


def in_role(role: DatabaseRole) -> AbstractContextManager[None]:
    """Let what is done within run in another role than the process's."""
    return _within(StatementScope(f"{SET_ROLE.format(role)}; "))


def limit_statements(engine: Engine) -> None:
    """Make every statement of the engine begin with the role of its scope, if it has one."""
    from sqlalchemy import event  # not for a process that only connects

    def begin_with_role(
        _connection: Any,
        _cursor: Any,
        statement: str,
        parameters: Any,
        _context: Any,
        _executemany: bool,
    ) -> tuple[str, Any]:
        prefix = _scope.get().prefix
        if prefix and statement.startswith(ROLL_BACK_TO):
            prefix = ""
        return prefix + statement, parameters

    event.listen(engine, "before_cursor_execute", begin_with_role, retval=True)


def role_option(role: DatabaseRole | None) -> str:
    """The part of libpq's ``options`` that a connection begins in the role with."""
    return f" -c role={role}" if role is not None else ""


def explained(message: str, login: str | None) -> str:
    """A server's refusal of a role, with what to do about it."""
    if "role" not in message or "fairline_" not in message:
        return message
    roles = ", ".join(DatabaseRole)
    return (
        f"{message}: this version needs the roles of its migrations. Run `flask --app app migrate`"
        f" as the owner of the tables, and as a superuser: GRANT {roles} TO {login or 'the login'}"
    )
