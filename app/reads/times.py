"""Times as the API writes them: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime | None) -> str | None:
    """A time as RFC 3339 in UTC."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sql_rfc3339(column: str) -> str:
    """The same as an SQL expression; sessions are in UTC."""
    return f"""to_char({column}, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
