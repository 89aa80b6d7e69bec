"""The bench's report: medians, ratios against the baseline, and the bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from loadtest.bars import Bar
from loadtest.report import Report, Table
from loadtest.samples import Sample, medians

BAR_CONNECTIONS = 64
ACCEPT_RATIO = 5.5
#: Where many connections are open, of what an empty route of Flask's answers.
CROWD_CONNECTIONS = 256
CROWD_RATIO = 0.75
#: Of the same, for who asks again about what he knows or what has ended.
POLL_RATIO = 0.8
POLLS = ("poll: Fairline, scored", "poll: Fairline, 304")
NOOP_RATIO = 5.0
CORE_PARTS = ("generator", "api", "plain-web", "worker", "scheduler", "postgres", "rabbitmq")


def compare(samples: Sequence[Sample]) -> Report:
    """What the samples say."""
    middle = medians(samples)
    report = Report("bench", "Fairline and a plain Celery application")
    for connections in (BAR_CONNECTIONS, 16, CROWD_CONNECTIONS):
        compare_requests(report, middle, connections)
    compare_jobs(report, middle)
    report.bars.append(Bar("unexpected answers", sum(s.unexpected for s in samples), "<=", 0.0))
    report.tables.append(cores_table(middle))
    report.data = {
        "medians": [asdict(sample) for sample in middle.values()],
        "rounds": [asdict(sample) for sample in samples],
    }
    return report


def compare_requests(report: Report, middle: dict[str, Sample], connections: int) -> None:
    """Front doors at one number of connections, if they were measured."""
    at = f" @{connections}"
    baseline = middle.get(f"accept: baseline{at}")
    ceiling = middle.get(f"empty Flask route{at}")
    fairline = middle.get(f"accept: Fairline{at}")
    if not (fairline and baseline and ceiling):
        return
    report.tables.append(
        Table(
            f"Requests at {connections} connections, medians",
            ("", "requests/s", "p50 ms", "p99 ms", "x baseline", "x empty", "per core-second"),
            [
                (
                    *(s.name.removesuffix(at), f"{s.rate:,.0f}", f"{s.p50_ms:.1f}"),
                    *(f"{s.p99_ms:.1f}", f"{s.rate / baseline.rate:.2f}"),
                    *(f"{s.rate / ceiling.rate:.2f}", f"{s.per_core_second:,.0f}"),
                )
                for s in middle.values()
                if s.name.endswith(at)
            ],
        )
    )
    if connections == BAR_CONNECTIONS:
        report.bars += [
            Bar(
                f"accept rate at {connections} connections, of the baseline's",
                *(fairline.rate / baseline.rate, ">=", ACCEPT_RATIO, " x"),
            ),
            Bar(
                "its p99, of the baseline's",
                *((fairline.p99_ms or 0.0) / (baseline.p99_ms or 1.0), "<=", 1.0, " x"),
            ),
        ]
    if connections == CROWD_CONNECTIONS:
        report.bars.append(
            Bar(
                f"accept rate at {connections} connections, of an empty Flask route's",
                *(fairline.rate / ceiling.rate, ">=", CROWD_RATIO, " x"),
            )
        )
    report.bars += [
        Bar(
            f"rate of {name} at {connections} connections, of an empty Flask route's",
            *(polled.rate / ceiling.rate, ">=", POLL_RATIO, " x"),
        )
        for name in POLLS
        if (polled := middle.get(f"{name}{at}")) is not None
    ]


def compare_jobs(report: Report, middle: dict[str, Sample]) -> None:
    """Durable no-op jobs, if they were measured."""
    ours = middle.get("no-op: Fairline, one worker")
    theirs = middle.get("no-op: baseline, one worker")
    if not (ours and theirs):
        return
    report.tables.append(
        Table(
            "Durable no-op jobs, medians",
            ("", "jobs/s", "x baseline", "per core-second"),
            [
                (
                    *(s.name, f"{s.rate:,.0f}", f"{s.rate / theirs.rate:.2f}"),
                    f"{s.per_core_second:,.0f}",
                )
                for s in (ours, middle.get("end to end: Fairline, HTTP batches"), theirs)
                if s is not None
            ],
        )
    )
    report.bars.append(
        Bar(
            "durable no-op jobs through one worker, of the baseline's",
            *(ours.rate / theirs.rate, ">=", NOOP_RATIO, " x"),
        )
    )


def cores_table(middle: dict[str, Sample]) -> Table:
    """Who used the cores."""
    rows = []
    for sample in middle.values():
        parts = dict.fromkeys(CORE_PARTS, 0.0)
        for name, used in sample.cores.items():
            part = "worker" if "worker" in name else name
            if part in parts:
                parts[part] += used
        figures = (*parts.values(), sample.strangers)
        rows.append((sample.name, *(f"{figure:.2f}" for figure in figures)))
    return Table("Cores in use", ("", *CORE_PARTS, "others"), rows)
