"""Prepared statements: what is sent by the hundred a second is planned once a connection.

Planning takes the server longer than running most of the hot statements for a small group. The
server plans again by itself when tables or their statistics change.

Guarantees: the same rows as the statement itself. Not for use within a transaction of several
statements: where a pooler hands every statement to another session, the first failure is
answered by sending the statement itself, from then on always, and a failure would have ended
the transaction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError

#: PostgreSQL's codes for a name that it does not know, and for one that it knows already.
NOT_OURS = ("26000", "42P05")
#: A parameter and its type; without one it must have had one before.
PARAMETER = re.compile(r"%\((\w+)\)s(?:::(\w+(?:\[\])?))?")
#: Where a connection notes what it has prepared.
NOTED = "fairline.prepared"


class Prepared:
    """A statement that names its parameters as ``%(name)s::type``."""

    def __init__(self, name: str, sql: str) -> None:
        self._sql = sql
        types: dict[str, str] = {}
        for parameter, kind in PARAMETER.findall(sql):
            types[parameter] = kind or types[parameter]
        places = {parameter: place for place, parameter in enumerate(types, 1)}
        body = PARAMETER.sub(lambda found: f"${places[found[1]]}", sql)
        # A session may know an older statement by the same name.
        self._name = f"{name}_{hashlib.blake2b(sql.encode(), digest_size=6).hexdigest()}"
        self._prepare = f"PREPARE {self._name} ({', '.join(types.values())}) AS {body}"
        given = ", ".join(f"%({parameter})s" for parameter in types)
        self._execute = f"EXECUTE {self._name} ({given})"
        #: Cleared where statements do not stay in their session.
        self._stays = True

    def execute(
        self, taken: Connection, parameters: Mapping[str, Any]
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run it on a connection that commits each statement."""
        if self._stays:
            try:
                noted: set[str] = taken.info.setdefault(NOTED, set())
                if self._name not in noted:
                    taken.exec_driver_sql(self._prepare)
                    noted.add(self._name)
                return taken.exec_driver_sql(self._execute, dict(parameters))
            except DBAPIError as error:
                if getattr(error.orig, "pgcode", None) not in NOT_OURS:
                    raise
                self._stays = False
        return taken.exec_driver_sql(self._sql, dict(parameters))
