"""What sizes are computed from: measured figures with their commands, and what is assumed."""

from __future__ import annotations

from dataclasses import dataclass

COST = "`make lab-cost`"
WRITES = "`python -m loadtest.job_io`"
ASSUMED = "assumed"

#: Parts of a deployment that take processor time for a job.
API, POSTGRES, WORKERS, OTHERS = "API", "PostgreSQL", "workers", "scheduler, RabbitMQ, Flower"
#: Milliseconds of processor time per job by part: 50-ms jobs that come alone, and jobs in groups,
#: eight workers on a full queue and four API processes. In groups, PostgreSQL's are those to accept
#: and the rest; the others' are the scheduler's, RabbitMQ's and Flower's.
SINGLE_PER_SECOND, GROUPED_PER_SECOND = 100.0, 1480.0
SINGLE_MS = {API: 2.1, POSTGRES: 2.7, WORKERS: 2.6, OTHERS: 0.8}
GROUPED_MS = {API: 0.51, POSTGRES: 0.21 + 0.26, WORKERS: 0.52, OTHERS: 0.06 + 0.04 + 0.03}
#: Of one process or core, jobs per second.
SCHEDULER_PER_SECOND = 17_400.0
#: Of a core, without any job.
IDLE_PERCENT = 2.9
#: Bytes of WAL, flushes of it and bytes that stay per job: alone, and 64 at a time.
SINGLE_WAL, GROUPED_WAL = 3150.0, 2050.0
SINGLE_FLUSHES, GROUPED_FLUSHES = 1.97, 0.15
STORED_BYTES = 645.0
#: The same of an application with its result, log and score, in all tables.
APPLICATION_BYTES = 1850.0

#: Peak of a day over its mean: 150,000 per second of two billion per day.
PEAK = 150_000 / (2e9 / 86_400)
#: A processor is busy for this part of the peak's seconds.
BUSY = 0.6
#: Jobs per second of a cell at the peak: the lower end of our estimate for one PostgreSQL on a
#: large server, whose upper end is next.
CELL_PER_SECOND, CELL_MOST_PER_SECOND = 5_000.0, 20_000.0
#: Of the fullest cell of the simulation, for comparison.
FULLEST_PER_SECOND = 7_411.0
#: Days that finished jobs stay (FAIRLINE_KEEP_FINISHED_DAYS), and copies of the database.
KEPT_DAYS, COPIES = 7.0, 2
#: Money for a core with its memory, a gigabyte of SSD and of archive, and cores of a worker.
CORE_HOUR, SSD_GB_MONTH, ARCHIVE_GB_MONTH = 0.04, 0.10, 0.023
WORKER_CORES = {"short": 1.0, "medium": 1.0, "long": 2.0}
#: Part of the slots of the started workers that runs jobs on average of a day.
FILLED = 0.6
#: Slots that are kept free at the peak, as the autoscaler does in ``short``.
HEADROOM = 0.2
#: Up to this peak a machine with two cores does all of it.
ONE_MACHINE_PER_SECOND, ONE_MACHINE_CORES = 10.0, 2.0
#: Cores of the three machines that survive the loss of one.
CLUSTER_CORES = 6.0


@dataclass(frozen=True, slots=True)
class Input:
    what: str
    value: str
    source: str


def by_part(times: dict[str, float]) -> str:
    return ", ".join(f"{part} {ms:.2f}" for part, ms in times.items())


INPUTS = (
    Input(
        f"processor time of a job that comes alone, {SINGLE_PER_SECOND:g} per second, ms",
        by_part(SINGLE_MS),
        COST,
    ),
    Input(
        f"processor time of a job among others, {GROUPED_PER_SECOND:,.0f} per second, ms",
        by_part(GROUPED_MS),
        COST,
    ),
    Input("jobs that one core of the scheduler dispatches", f"{SCHEDULER_PER_SECOND:,.0f}/s", COST),
    Input("a stack without jobs", f"{IDLE_PERCENT:g} % of a core", "`python -m loadtest.idle`"),
    Input("WAL of a job, alone, among others", f"{SINGLE_WAL:,.0f}, {GROUPED_WAL:,.0f} B", WRITES),
    Input("flushes of the WAL", f"{SINGLE_FLUSHES:g}, {GROUPED_FLUSHES:g} per job", WRITES),
    Input("a finished job in the table `jobs`, with indexes", f"{STORED_BYTES:,.0f} B", WRITES),
    Input(
        "… with a payload of 600 bytes, result, log and score, in all tables",
        f"{APPLICATION_BYTES:,.0f} B",
        "`make retention`",
    ),
    Input(
        "jobs per second of the fullest cell, two billion per day",
        f"{FULLEST_PER_SECOND:,.0f}",
        "`make simulation`",
    ),
    Input("jobs per second of a cell at the peak, mean", f"{CELL_PER_SECOND:,.0f}", ASSUMED),
    Input("most that one PostgreSQL bears, per second", f"{CELL_MOST_PER_SECOND:,.0f}", ASSUMED),
    Input("peak of a day ÷ its mean", f"{PEAK:.2f}", ASSUMED),
    Input("part of a processor that is used at the peak", f"{BUSY:g}", ASSUMED),
    Input("part of the workers' slots in use, over a day", f"{FILLED:g}", ASSUMED),
    Input("part of the slots that is free at the peak", f"{HEADROOM:g}", ASSUMED),
    Input(
        "cores of a worker",
        ", ".join(f"{pool} {cores:g}" for pool, cores in WORKER_CORES.items()),
        ASSUMED,
    ),
    Input(
        f"a machine of {ONE_MACHINE_CORES:g} cores alone, up to",
        f"{ONE_MACHINE_PER_SECOND:g} jobs per second",
        ASSUMED,
    ),
    Input("three machines together, cores", f"{CLUSTER_CORES:g}", ASSUMED),
    Input("days that finished jobs are kept", f"{KEPT_DAYS:g}", "the default; assumed"),
    Input("copies of the database", f"{COPIES}", ASSUMED),
    Input("a core with its memory", f"${CORE_HOUR:g} per hour", ASSUMED),
    Input("SSD, archive", f"${SSD_GB_MONTH:g}, ${ARCHIVE_GB_MONTH:g} per GB and month", ASSUMED),
)
