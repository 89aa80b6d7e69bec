"""Who is calling: the tenant whose rows a request may see and change."""

from __future__ import annotations

import threading

from sqlalchemy import Engine

from app.api.state import patience
from app.errors import Unauthenticated
from models.session import connection


class Tenants:
    """Tenant ids by name, looked up once."""

    def __init__(self, engine: Engine, anonymous: str, read_seconds: float) -> None:
        self._engine = engine
        self._anonymous = anonymous
        self._read_seconds = read_seconds
        self._ids: dict[str, int] = {}
        self._looking = threading.Lock()

    def current_id(self) -> int:
        """The tenant a caller without a key acts as."""
        if not self._anonymous:
            raise Unauthenticated
        known = self._ids.get(self._anonymous)
        return known if known is not None else self._look_up(self._anonymous)

    def _look_up(self, name: str) -> int:
        with patience(self._read_seconds), self._looking:  # a burst of first requests asks once
            if name not in self._ids:
                with connection(self._engine) as taken:
                    row = taken.exec_driver_sql(
                        "SELECT id FROM tenants WHERE name = %s", (name,)
                    ).first()
                if row is None:
                    raise Unauthenticated(f"There is no tenant {name!r}.")
                self._ids[name] = row[0]
            return self._ids[name]
