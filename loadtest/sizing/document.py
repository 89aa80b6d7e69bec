"""The text of ``docs/sizing.md``; a test compares the file with it."""

from __future__ import annotations

from app.policy.window import CEILING
from loadtest.report import Table, markdown
from loadtest.simulation.world import KINDS, POOL_NAMES, slot_seconds
from loadtest.sizing.inputs import (
    API,
    APPLICATION_BYTES,
    CELL_MOST_PER_SECOND,
    CELL_PER_SECOND,
    GROUPED_MS,
    GROUPED_WAL,
    HEADROOM,
    INPUTS,
    ONE_MACHINE_PER_SECOND,
    OTHERS,
    POSTGRES,
    SCHEDULER_PER_SECOND,
    STORED_BYTES,
    WORKERS,
)
from loadtest.sizing.model import Size, overhead_cores

SIZES = {"1 thousand": 1e3, "100 thousand": 1e5, "10 million": 1e7, "2 billion": 2e9}

OPENING = """\
# Sizing

How many cores, disks and how much money so many jobs per day take. Every input is a figure of a \
command that you can run, or is marked as assumed; `python -m loadtest.sizing` prints this page \
from them, and a test compares. Absolute figures differ between machines: run the commands on \
yours and put its figures into `loadtest/sizing/inputs.py`."""
INPUT_TEXT = """\
Measured on machines with two cores, see [performance.md](performance.md). Jobs that do nothing, \
with payloads of some bytes: what your jobs compute is yours, and what they carry is added to WAL \
and disk. A job that comes alone pays for two commits; under load they are shared. In between \
the cost is taken to fall as a power of the rate. Flushes are the writes that jobs wait for; what \
checkpoints and vacuum write besides was not measured."""
SIZE_TEXT = """\
The kinds of jobs are those of the simulation (`make simulation`), {seconds:.2f} \
slot-seconds per job on average. Cores are for the peak, workers too; money is for a month of such \
days, with engines that are always there and workers that follow the load. Up to \
{one:g} jobs per second a machine with two cores does all of it (`make up`), workers included. \
Beyond, three machines with two cores each are the least that survive the loss of one \
([cluster.md](cluster.md)); the money includes them."""
LIMIT_TEXT = """\
What one cell bears, one limit after the other as its load grows. Beyond the last, more cells do \
what no larger machine does: a cell is a whole copy with tenants of its own, so that nothing is \
shared that could be full."""


def figure(value: float) -> str:
    """With as many digits as mean something."""
    if not value or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def input_table() -> Table:
    return Table(
        "Inputs", ("", "value", "from"), [(one.what, one.value, one.source) for one in INPUTS]
    )


def size_table() -> Table:
    sizes = [Size(jobs) for jobs in SIZES.values()]
    parts = [
        ("jobs per second, mean", [figure(one.mean) for one in sizes]),
        ("jobs per second, peak", [figure(one.peak) for one in sizes]),
        ("cells", [f"{one.cells}" for one in sizes]),
        ("API, cores", [figure(one.cores(API)) for one in sizes]),
        ("PostgreSQL, cores of all primaries", [figure(one.cores(POSTGRES)) for one in sizes]),
        ("scheduler, RabbitMQ, Flower, cores", [figure(one.cores(OTHERS)) for one in sizes]),
        ("workers beside their jobs, cores", [figure(overhead_cores(one)) for one in sizes]),
        *(
            (f"workers of {pool}", [f"{one.workers(pool):,}" for one in sizes])
            for pool in POOL_NAMES
        ),
        ("WAL of a cell, MB/s", [figure(one.wal_per_second / 1e6) for one in sizes]),
        ("flushes of a cell per second", [figure(one.flushes_per_second) for one in sizes]),
        ("disk of a cell, GB", [figure(one.disk(STORED_BYTES) / 1e9) for one in sizes]),
    ]
    money = [one.money(STORED_BYTES) for one in sizes]
    parts += [(f"{what}, $ per month", [figure(each[what]) for each in money]) for what in money[0]]
    parts.append(("together, $ per month", [figure(sum(each.values())) for each in money]))
    parts.append(
        (
            "together, $ per million jobs",
            [
                figure(sum(each.values()) / (30 * one.jobs_per_day / 1e6))
                for each, one in zip(money, sizes, strict=True)
            ],
        )
    )
    rows = [(name, *cells) for name, cells in parts]
    return Table("Sizes", ("jobs per day", *SIZES), rows)


def limit_table() -> Table:
    def per_core(part: str) -> str:
        return f"{1000 / GROUPED_MS[part]:,.0f} jobs per second and core"

    in_flight = ", ".join(f"{pool} {CEILING / run_seconds(pool):,.0f}" for pool in POOL_NAMES)
    rows = [
        ("API process", per_core(API), "more processes: they share nothing but the database"),
        (
            "worker process",
            per_core(WORKERS),
            "more workers; more slots where jobs wait for others",
        ),
        (
            "PostgreSQL, processor",
            per_core(POSTGRES),
            "more cores, until the WAL is the limit; lists from a standby",
        ),
        (
            "PostgreSQL, one write-ahead log",
            f"{CELL_PER_SECOND:,.0f} to {CELL_MOST_PER_SECOND:,.0f} jobs per second "
            f"({CELL_PER_SECOND * GROUPED_WAL / 1e6:.0f} to "
            f"{CELL_MOST_PER_SECOND * GROUPED_WAL / 1e6:.0f} MB/s); an estimate, not measured",
            "a disk with lower flush times; then cells",
        ),
        (
            "scheduler, one leader",
            f"{SCHEDULER_PER_SECOND:,.0f} jobs per second that have to wait; the express lane "
            "does not need it",
            "a faster core; then cells",
        ),
        (
            "window of a pool",
            f"{CEILING:,} jobs in flight, that is jobs per second: {in_flight}",
            "shorter jobs, more pools; then cells",
        ),
        (
            "disk",
            f"{STORED_BYTES / 1000:.2g} kB per finished job, {KEPT_TEXT}; of an application "
            f"{APPLICATION_BYTES / 1000:.2g} kB, {APPLICATION_BYTES / STORED_BYTES:.1f} times that",
            "a shorter `FAIRLINE_KEEP_FINISHED_DAYS`; payloads above 64 KiB are in the blob store",
        ),
    ]
    return Table("Limits", ("what", "limit", "what to do there"), rows)


KEPT_TEXT = f"{86_400 * STORED_BYTES / 1e9:.3g} GB per day and job per second"


def run_seconds(pool: str) -> float:
    """The mean run of a job of this pool."""
    return slot_seconds(pool) / sum(kind.share for kind in KINDS if kind.pool == pool)


def table_text(made: Table) -> str:
    """The last columns of the others are text, too."""
    lines = markdown(made)
    if made.title != "Sizes":
        lines[1] = "|" + "---|" * len(made.headings)
    return "\n".join(lines)


def document() -> str:
    mean = sum(slot_seconds(pool) for pool in POOL_NAMES)
    parts = [
        OPENING,
        "## Inputs",
        INPUT_TEXT,
        table_text(input_table()),
        "## Sizes",
        SIZE_TEXT.format(seconds=mean, one=ONE_MACHINE_PER_SECOND),
        table_text(size_table()),
        f"Workers of the peak include {100 * HEADROOM:.0f} % free slots; those of 2 billion are "
        "[simulated](simulation.md) too, with boot times, failures and a lost cell: some more, as "
        "workers start before they are needed and stop later.",
        "## Where the limits are",
        LIMIT_TEXT,
        table_text(limit_table()),
    ]
    return "\n\n".join(parts) + "\n"
