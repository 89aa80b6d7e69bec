"""Worker pools as data: adding a pool is one more entry and a worker that serves it.

``FAIRLINE_POOLS`` changes or adds entries without touching code, as JSON:
``{"gpu": {"lease_seconds": 90, "slots": 1, "tries": 2}, "medium": {"lease_seconds": 20}}``.
A pool that names another one in ``above`` takes over job types whose runs are too long for that.

A slice is a queue of a pool with dedicated workers: ``<pool>.free`` serves all free accounts
together, ``<pool>.reserved.<tenant>`` one tenant alone. A job of a slice stays a job of its
pool: leases, limits and attempts are the pool's.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from models.settings import DatabaseSettings, Pool, exit_if_invalid, read_settings

#: Signal to a worker that is one too many, before SIGTERM: it may take its time. What it runs ends
#: there instead of going on elsewhere from its next checkpoint.
RETIRE = signal.SIGUSR2

BUILT_IN = (
    Pool(
        name="short",
        lease_seconds=10,
        slots=50,
        tries=5,
        objective_seconds=0.5,
        bound_seconds=1,
        most_seconds=600,
    ),
    Pool(
        name="medium",
        lease_seconds=30,
        slots=10,
        tries=3,
        objective_seconds=5,
        above="short",
        bound_seconds=60,
        most_seconds=300,
    ),
    Pool(
        name="long",
        lease_seconds=90,
        slots=2,
        tries=2,
        objective_seconds=60,
        concurrency="prefork",
        above="medium",
        checkpoint_seconds=300,
        memory_mb=1024,
    ),
)


def read_pools(changes: Mapping[str, Mapping[str, object]]) -> dict[str, Pool]:
    """The built-in pools with ``changes`` applied and new entries added."""
    entries: dict[str, dict[str, object]] = {
        pool.name: pool.model_dump(exclude_unset=True) for pool in BUILT_IN
    }
    for name, change in changes.items():
        entries[name] = {**entries.get(name, {}), **change, "name": name}
    return {name: Pool.model_validate(entry) for name, entry in entries.items()}


def chain_of(pools: Mapping[str, Pool]) -> tuple[str, ...]:
    """The pools that differ by duration, shortest first, as ``above`` connects them."""
    above: dict[str, str] = {}
    for pool in pools.values():
        if pool.above is None:
            continue
        below = pools.get(pool.above)
        if below is None:
            raise ValueError(f"{pool.name} is above {pool.above}, which is no pool")
        if below.name in above:
            both = " and ".join(sorted((pool.name, above[below.name])))
            raise ValueError(f"{both} are both above {below.name}")
        if below.bound_seconds is None:
            without = f"{below.name}, which has no bound_seconds: every run belongs there"
            raise ValueError(f"{pool.name} is above {without}")
        above[below.name] = pool.name
    lowest = [name for name in above if pools[name].above is None]
    chain = lowest[:1]
    while chain and chain[-1] in above:
        chain.append(above[chain[-1]])
    if above and len(chain) != len(above) + 1:
        raise ValueError("pools that are above others must be one chain with a lowest pool")
    return tuple(chain)


#: References in a message of jobs whose duration is not known yet, in a pool for the shortest.
UNMEASURED_REFS = 20


def unmeasured_refs(pool: Pool) -> int:
    """References in a message of jobs whose duration is not known yet: what waits behind one that
    is in a pool for longer ones might wait long."""
    return 1 if pool.above else min(pool.refs_per_message, UNMEASURED_REFS)


#: Every pool of this deployment, by name.
with exit_if_invalid("pools"):
    POOLS = read_pools(read_settings(DatabaseSettings).pools)
    #: Those between which job types move as measured, shortest first.
    CHAIN = chain_of(POOLS)


#: Upper bounds of the histograms of waits and run times, in seconds: from the express lane to a
#: night in the queue, with every objective; and from a no-op to the longest runs.
WAIT_BOUNDS = sorted(
    {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 28800}
    | {pool.objective_seconds for pool in POOLS.values()}
)
RUN_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)

#: How long a lease lasts in a pool that this process does not know.
UNKNOWN_LEASE = "30 seconds"

#: Pools have no dots in their names, nor have tenants.
_SLICED = re.compile(r"([a-z][a-z0-9_-]*)\.(free|reserved\.[a-z0-9][a-z0-9_-]{0,62})")


def reserved(tenant: str) -> str:
    """The slice of one tenant."""
    return f"reserved.{tenant}"


def slice_queue(pool: str, slice_: str = "") -> str:
    """The queue of a slice; without one, the pool's shared queue."""
    return f"{pool}.{slice_}" if slice_ else pool


def parse_queue(name: str) -> tuple[str, str]:
    """Pool and slice of a queue; whatever is no slice is taken for a pool with none."""
    found = _SLICED.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def is_job_queue(name: str) -> bool:
    """Whether the name is that of a pool, or of a slice of one."""
    return parse_queue(name)[0] in POOLS


def lease_interval(pool: str) -> str:
    """How long a lease lasts in a pool, as PostgreSQL reads it."""
    return f"{POOLS[pool].lease_seconds:g} seconds" if pool in POOLS else UNKNOWN_LEASE


def lease_interval_sql(column: str) -> str:
    """An SQL expression: how long a lease lasts in the pool that ``column`` names."""
    cases = " ".join(f"WHEN '{pool}' THEN interval '{lease_interval(pool)}'" for pool in POOLS)
    return f"CASE {column} {cases} ELSE interval '{UNKNOWN_LEASE}' END"
