"""Begins a generation of the feed soon after a restore or a promotion, also if nobody listens.

See :mod:`models.feed`.
"""

from __future__ import annotations

from sqlalchemy import Engine

from models.feed import read_generations
from models.store.session import connect


class FeedGenerations:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run_once(self, now: float) -> int:
        with connect(self._engine) as connection:
            read_generations(connection)
        return 0
