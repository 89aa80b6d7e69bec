"""Worker pools as data: adding a pool is one more entry here and a worker that serves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """A class of work by duration, with the limits that follow from it."""

    #: Queue, worker option ``-Q`` and metric label.
    name: str
    #: A claim holds this long without a heartbeat; so does a dispatch without a claim.
    lease_seconds: float
    #: Jobs one worker runs at a time, as the stack starts it.
    slots: int
    #: Tries an APP_ERROR gets before the job is dead.
    tries: int
    #: References one message may carry; more than one only where jobs end in a moment.
    refs_per_message: int = 1

    @property
    def heartbeat_seconds(self) -> float:
        """Three heartbeats to a lease: a lease is lost after three were missed."""
        return self.lease_seconds / 3


POOLS: dict[str, Pool] = {
    pool.name: pool
    for pool in (
        Pool("short", lease_seconds=10, slots=50, tries=5, refs_per_message=20),
        Pool("medium", lease_seconds=30, slots=10, tries=3),
        Pool("long", lease_seconds=90, slots=2, tries=2),
    )
}


def lease_interval_sql(column: str) -> str:
    """An SQL expression: how long a lease lasts in the pool that ``column`` names."""
    cases = " ".join(
        f"WHEN '{pool.name}' THEN interval '{pool.lease_seconds:g} seconds'"
        for pool in POOLS.values()
    )
    return f"CASE {column} {cases} ELSE interval '30 seconds' END"
