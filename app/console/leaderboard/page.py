"""``/console/leaderboard``: a tenant's scored applications of a role, best first.

The rows are those of ``GET /leaderboard``. Ties are marked, and so are scores that differ by less
than a point: their order may be down to chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from app.api.http.state import read_standby
from app.api.routes.leaderboard import Cursor, RankedScore, parse_role, read_page
from app.api.services import current_services
from app.console.page import PageRequest, live_page
from app.errors import NotFound
from app.tenants.tenant import TenantProfile

PATH = "/console/leaderboard"
SHOWN = 50
#: With more of them, the form has a text field instead of a list.
MOST_TENANTS = 200
MOST_ROLES = 100
USUAL_ROLE = "general"
#: Scores that differ by less are near-ties.
NEAR = Decimal(1)

READ_TENANTS = f"SELECT name FROM tenants ORDER BY name LIMIT {MOST_TENANTS + 1}"
#: Among the newest applications of all tenants; a tenant without any there has no newest role.
READ_NEWEST_ROLE = """
    SELECT role FROM (
        SELECT tenant_id, role, id FROM applications ORDER BY id DESC LIMIT 1000) AS newest
    WHERE tenant_id = %(tenant)s ORDER BY id DESC LIMIT 1
"""
#: The first along the ranking: the oldest tenant with a score.
READ_FIRST_TENANT = """
    SELECT tenant.name FROM tenants AS tenant WHERE tenant.id = (
        SELECT tenant_id FROM applications WHERE score IS NOT NULL ORDER BY tenant_id LIMIT 1)
"""
#: A loose index scan along the ranking: one step per role, however many applications it has.
READ_ROLES = f"""
    WITH RECURSIVE found AS (
        (SELECT role FROM applications
         WHERE tenant_id = %(tenant)s AND score IS NOT NULL ORDER BY role LIMIT 1)
        UNION ALL
        SELECT (SELECT application.role FROM applications AS application
                WHERE application.tenant_id = %(tenant)s AND application.score IS NOT NULL
                  AND application.role > found.role
                ORDER BY application.role LIMIT 1)
        FROM found WHERE found.role IS NOT NULL
    )
    SELECT role FROM found WHERE role IS NOT NULL LIMIT {MOST_ROLES + 1}
"""


def lines(
    entries: Sequence[RankedScore], limit: int, above: Decimal | None
) -> list[tuple[RankedScore, bool, bool]]:
    """The first ``limit`` of the entries, whether another has the same score, or nearly the same.

    ``above`` is the score before them.
    """
    scores = [above, *[entry.score for entry in entries], None]
    found = []
    for place, entry in enumerate(entries[:limit]):
        beside = [score for score in (scores[place], scores[place + 2]) if score is not None]
        gaps = [abs(score - entry.score) for score in beside]
        found.append((entry, 0 in gaps, any(0 < gap < NEAR for gap in gaps)))
    return found


def read_leaderboard(asked: PageRequest) -> dict[str, Any]:
    """A page of the ranking; the choices are read only for the whole page."""
    text = asked.args.get("cursor")
    cursor = Cursor.decode(text) if text else None
    with read_standby() as connection:
        tenant = find_tenant(connection, asked.args.get("tenant", ""))
        role, entries = USUAL_ROLE, list[RankedScore]()
        if tenant is not None:
            role = find_role(connection, tenant, asked.args.get("role", ""))
            entries = read_page(connection, tenant.id, role, SHOWN, cursor)
    return {
        "tenant": tenant.name if tenant else None,
        "role": role,
        "lines": lines(entries, SHOWN, cursor.score if cursor else None),
        "following": entries[SHOWN - 1].encode() if len(entries) > SHOWN else None,
        "later": cursor is not None,
        "choices": lambda: read_choices(tenant),
        "most": {"tenants": MOST_TENANTS, "roles": MOST_ROLES},
        "typed": {},
        "trouble": None,
    }


def find_tenant(connection: Connection, name: str) -> TenantProfile | None:
    """Whose leaderboard it is; None only if there are no tenants at all."""
    visitors = current_services().visitors
    if name:
        found = visitors.tenant_named(name)
        if found is None:
            raise NotFound("There is no tenant with that name.")
        return found
    if visitors.anonymous and (found := visitors.tenant_named(visitors.anonymous)):
        return found
    for statement in (READ_FIRST_TENANT, READ_TENANTS):
        if first := connection.exec_driver_sql(statement).scalar():
            return visitors.tenant_named(first)
    return None


def find_role(connection: Connection, tenant: TenantProfile, text: str) -> str:
    """The requested role, or the one of the newest application."""
    if text.strip():
        return parse_role(text)
    if newest := connection.exec_driver_sql(READ_NEWEST_ROLE, {"tenant": tenant.id}).scalar():
        return str(newest)
    roles = read_roles(connection, tenant)
    return USUAL_ROLE if USUAL_ROLE in roles or not roles else roles[0]


def read_roles(connection: Connection, tenant: TenantProfile) -> list[str]:
    """Roles of the tenant that have a leaderboard."""
    return list(connection.exec_driver_sql(READ_ROLES, {"tenant": tenant.id}).scalars())


def read_choices(tenant: TenantProfile | None) -> dict[str, list[str]]:
    with read_standby() as connection:
        return {
            "tenants": list(connection.exec_driver_sql(READ_TENANTS).scalars()),
            "roles": read_roles(connection, tenant) if tenant else [],
        }


LEADERBOARD = live_page(PATH, "console/leaderboard.html", read_leaderboard)
