"""What sizes are computed from: measured figures with their commands, and what is assumed."""

from __future__ import annotations

from dataclasses import dataclass

COST = "`make lab-cost`"
WRITES = "`python -m loadtest.job_io`"
ASSUMED = "assumed"

#: Parts of a deployment that take processor time for a job.
API, POSTGRES, WORKERS, OTHERS = "API", "PostgreSQL", "workers", "scheduler, RabbitMQ, Flower"
#: Milliseconds of processor time per job by part: jobs that come alone, 100 per second, and jobs
#: in groups, eight workers on a full queue and four API processes.
SINGLE_PER_SECOND, GROUPED_PER_SECOND = 100.0, 1440.0
SINGLE_MS = {API: 2.0, POSTGRES: 2.7, WORKERS: 2.7, OTHERS: 1.8}
GROUPED_MS = {API: 0.27, POSTGRES: 0.09 + 0.31, WORKERS: 0.46, OTHERS: 0.05 + 0.06 + 0.05}
#: Of one process or core, jobs per second.
SCHEDULER_PER_SECOND = 15_400.0
#: Of a core, without any job.
IDLE_PERCENT = 2.9
#: Bytes of WAL, flushes of it and bytes that stay per job: alone, and 64 at a time.
SINGLE_WAL, GROUPED_WAL = 3900.0, 2130.0
SINGLE_FLUSHES, GROUPED_FLUSHES = 2.62, 0.18
STORED_BYTES = 590.0

#: Peak of a day over its mean: 150,000 per second of two billion per day.
PEAK = 150_000 / (2e9 / 86_400)
#: A processor is busy for this part of the peak's seconds.
BUSY = 0.6
#: Jobs per second of a cell at the peak: the lower end of our estimate for one PostgreSQL on a
#: large server, whose upper end is 20,000.
CELL_PER_SECOND, CELL_MOST_PER_SECOND = 5_000.0, 20_000.0
#: Days that finished jobs stay (FAIRLINE_KEEP_FINISHED_DAYS), and copies of the database.
KEPT_DAYS, COPIES = 7.0, 2
#: Money for a core with its memory, a gigabyte of SSD and of archive, and cores of a worker.
CORE_HOUR, SSD_GB_MONTH, ARCHIVE_GB_MONTH = 0.04, 0.10, 0.023
WORKER_CORES = {"short": 1.0, "medium": 1.0, "long": 2.0}
#: Part of the slots of the started workers that runs jobs on average of a day.
FILLED = 0.6


@dataclass(frozen=True, slots=True)
class Input:
    what: str
    value: str
    source: str


def by_part(times: dict[str, float]) -> str:
    return ", ".join(f"{part} {ms:.2f}" for part, ms in times.items())


INPUTS = (
    Input("processor time of a job that comes alone, ms", by_part(SINGLE_MS), COST),
    Input("processor time of a job among others, ms", by_part(GROUPED_MS), COST),
    Input("jobs that one core of the scheduler dispatches", f"{SCHEDULER_PER_SECOND:,.0f}/s", COST),
    Input("a stack without jobs", f"{IDLE_PERCENT:g} % of a core", "`python -m loadtest.idle`"),
    Input("WAL of a job, alone, among others", f"{SINGLE_WAL:,.0f}, {GROUPED_WAL:,.0f} B", WRITES),
    Input("flushes of the WAL", f"{SINGLE_FLUSHES:g}, {GROUPED_FLUSHES:g} per job", WRITES),
    Input("a finished job in the table `jobs`, with indexes", f"{STORED_BYTES:,.0f} B", WRITES),
    Input("part of the workers' slots in use, over a day", f"{FILLED:g}", ASSUMED),
    Input("jobs per second of a cell at the peak", f"{CELL_PER_SECOND:,.0f}", ASSUMED),
    Input("peak of a day ÷ its mean", f"{PEAK:.2f}", ASSUMED),
    Input("part of a processor that is used at the peak", f"{BUSY:g}", ASSUMED),
    Input("days that finished jobs are kept", f"{KEPT_DAYS:g}", "the default; assumed"),
    Input("copies of the database", f"{COPIES}", ASSUMED),
    Input("a core with its memory", f"${CORE_HOUR:g} per hour", ASSUMED),
    Input("SSD, archive", f"${SSD_GB_MONTH:g}, ${ARCHIVE_GB_MONTH:g} per GB and month", ASSUMED),
)  # fmt: skip
