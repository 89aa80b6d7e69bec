"""Audit log: who changed what, written in the transaction of the change.

An entry point (a route, a form, a command) declares its acts and calls its function within
``acting``; whatever then changes a row does so within ``recording`` and calls ``record``. Both are
in one transaction: either the change is committed with its row of ``audit_log`` or neither is. An
act that the entry point does not declare is an error, and nothing is changed. Where nobody acts,
say in the scheduler, nothing is recorded, and ``recording`` is a plain connection.

Not in the transaction of the change, but committed before it: submissions on behalf of a tenant,
runs of a schedule, exports and re-encryption (``record_first``). Those may be in the log and not
have happened.

Values are given by the callers: no keys, payloads, results, or names of candidates.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Row

from models.store.session import connect, execute, transaction

#: Ids that are listed in one row.
MOST_IDS = 1_000


class Act(StrEnum):
    """Everything that is recorded."""

    TENANT_CREATE = "tenant.create"
    TENANT_CHANGE = "tenant.change"
    TENANT_SUSPEND = "tenant.suspend"
    TENANT_RESUME = "tenant.resume"
    TENANT_DELETE = "tenant.delete"
    #: To other cells: requested, cancelled, or at its end.
    TENANT_MOVE = "tenant.move"
    #: Added, reached in another way, drained.
    CELL_CHANGE = "cell.change"
    KEY_ISSUE = "key.issue"
    KEY_REVOKE = "key.revoke"
    #: Somebody signed in to pages.
    SESSION_BEGIN = "session.begin"
    QUOTA_DECLARE = "quota.declare"
    QUOTA_CLEAR = "quota.clear"
    SCHEDULE_CREATE = "schedule.create"
    SCHEDULE_CHANGE = "schedule.change"
    SCHEDULE_REMOVE = "schedule.remove"
    SCHEDULE_RUN = "schedule.run"
    #: By an operator, on behalf of a tenant.
    JOB_SUBMIT = "job.submit"
    JOB_CANCEL = "job.cancel"
    JOB_REPLAY = "job.replay"
    JOB_DISCARD = "job.discard"
    REPLAY_REQUEST = "replay.request"
    REPLAY_CANCEL = "replay.cancel"
    APPLICATION_ERASE = "application.erase"
    APPLICATION_EXPORT = "application.export"
    WORKER_DRAIN = "worker.drain"
    DATABASE_MIGRATE = "database.migrate"
    CONTENT_REENCRYPT = "content.reencrypt"
    #: A request that was refused: a sample of them.
    REQUEST_REFUSE = "request.refuse"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, from where, and what may be recorded of it."""

    via: str
    who: str
    role: str
    acts: Collection[Act]
    address: str | None = None
    request_id: str | None = None
    #: Of somebody without a key, whose name is read from its row.
    name: str | None = None


class UndeclaredAct(RuntimeError):
    """A change is not among the acts that its entry point declares."""


_actor: ContextVar[Actor | None] = ContextVar("fairline_actor", default=None)

RECORD = """
    INSERT INTO audit_log (via, who, who_name, role, tenant, what, target, before, after, address,
                           request_id)
    VALUES (%(via)s, %(who)s,
            coalesce(%(name)s, CASE WHEN %(via)s <> 'command line'
                               THEN (SELECT name FROM api_keys WHERE id = %(who)s) END),
            %(role)s,
            coalesce(%(tenant)s, (SELECT name FROM tenants WHERE id = %(tenant_id)s::bigint)),
            %(what)s, %(target)s, %(before)s::jsonb, %(after)s::jsonb, %(address)s, %(request_id)s)
"""


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Record what is changed within as this actor's."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def recording(engine: Engine) -> AbstractContextManager[Connection]:
    """A connection for a change and ``record``: in one transaction, if somebody acts."""
    return connect(engine) if _actor.get() is None else transaction(engine)


def record(
    connection: Connection,
    act: Act,
    target: str = "",
    *,
    tenant: str | int | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add a row, if somebody acts; ``tenant`` is a name or an id."""
    if (actor := _actor.get()) is not None:
        connection.exec_driver_sql(RECORD, row_of(actor, act, target, tenant, before, after))


def record_first(engine: Engine, act: Act, target: str = "", **values: Any) -> None:
    """Commit a row on its own, before what it is about."""
    if (actor := _actor.get()) is not None:
        named = {"tenant": None, "before": None, "after": None, **values}
        execute(engine, RECORD, row_of(actor, act, target, **named))


def record_jobs(connection: Connection, act: Act, rows: Iterable[Row[Any]]) -> None:
    """A row for each tenant of some jobs, which have ``id`` and ``tenant_id``."""
    of_tenants: dict[int, list[str]] = {}
    for row in rows:
        of_tenants.setdefault(row.tenant_id, []).append(row.id)
    for tenant_id, ids in of_tenants.items():
        if len(ids) == 1:
            record(connection, act, ids[0], tenant=tenant_id)
        else:
            after = {"jobs": len(ids), "ids": ids[:MOST_IDS]}
            record(connection, act, tenant=tenant_id, after=after)


def row_of(
    actor: Actor,
    act: Act,
    target: str,
    tenant: str | int | None,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The parameters of ``RECORD``."""
    if act not in actor.acts:
        raise UndeclaredAct(f"{act} is not declared by what was called")
    return {
        "via": actor.via,
        "who": actor.who,
        "name": actor.name,
        "role": actor.role,
        "tenant": tenant if isinstance(tenant, str) else None,
        "tenant_id": tenant if isinstance(tenant, int) else None,
        "what": act.value,
        "target": target,
        "before": as_json(before),
        "after": as_json(after),
        "address": actor.address,
        "request_id": actor.request_id,
    }


def as_json(fields: Mapping[str, Any] | None) -> str | None:
    return json.dumps(fields, default=str) if fields else None


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that differ, as they were and as they are."""
    names = [name for name in after if before.get(name) != after[name]]
    return {name: before.get(name) for name in names}, {name: after[name] for name in names}
