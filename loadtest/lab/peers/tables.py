"""The comparison's tables."""

from __future__ import annotations

from loadtest.lab.peers.measured import CELERY, FAIRLINE, Measured
from loadtest.report import Table
from loadtest.samples import Sample


def milliseconds(value: float | None) -> str:
    """One digit after the point."""
    return "" if value is None else f"{value:.1f}"


def accept_table(found: Measured) -> Table:
    """Front doors at 64 connections, and Fairline's against the empty route at 256."""
    rates, connections = found.rates("accept", " @few"), found.connections
    base = rates[CELERY].rate

    def row(name: str, sample: Sample, empty: Sample, of_celery: str) -> tuple[str, ...]:
        return (
            name,
            f"{sample.rate:,.0f}",
            milliseconds(sample.p50_ms),
            milliseconds(sample.p99_ms),
            of_celery,
            f"{sample.rate / empty.rate:.2f}" if empty.rate else "",
        )

    ours = found.sample(f"accept: {FAIRLINE} @many")
    few, many = (found.sample(f"empty Flask route @{at}") for at in ("few", "many"))
    rows = [
        row(name, sample, few, f"{sample.rate / base:.2f}" if base else "")
        for name, sample in rates.items()
    ]
    rows += [
        row("empty Flask route", few, few, ""),
        row(f"Fairline, {connections[1]} connections", ours, many, ""),
        row(f"empty Flask route, {connections[1]} connections", many, many, ""),
    ]
    return Table(
        f"Accept rate through HTTP, one job a request, {connections[0]} connections",
        ("", "requests/s", "p50 ms", "p99 ms", "x plain Celery", "x empty route"),
        rows,
    )


def poll_table(found: Measured) -> Table:
    """What asking costs."""
    empty = found.sample("empty Flask route @few")
    rows = []
    for kind in ("pending", "304", "terminal"):
        sample = found.sample(f"poll: {kind} @few")
        rows.append(
            (
                *(kind, f"{sample.rate:,.0f}"),
                *(milliseconds(sample.p50_ms), milliseconds(sample.p99_ms)),
                f"{sample.rate / empty.rate:.2f}" if empty.rate else "",
            )
        )
    return Table(
        f"Polls of Fairline, {found.connections[0]} connections",
        ("", "requests/s", "p50 ms", "p99 ms", "x empty route"),
        rows,
    )


def jobs_table(found: Measured) -> Table:
    """Jobs a second in three ways."""
    kinds = ("no-op end to end", "drain", "10-ms end to end")
    columns = [found.rates(kind) for kind in kinds]
    rows = [
        (name, *(f"{column[name].rate:,.0f}" if name in column else "" for column in columns))
        for name in found.names
    ]
    return Table(
        "Jobs a second",
        ("", "no-op, HTTP batch to done", "no-op, from a full line", "10-ms, HTTP batch to done"),
        rows,
    )


def start_table(found: Measured) -> Table:
    """One job at a time on an idle stack."""
    return Table(
        "From submission to start, one job at a time on an idle stack",
        ("", "jobs", "p50 ms", "p95 ms", "p99 ms"),
        [
            (
                *(name, str(len(found.starts[name]))),
                *(f"{value:.1f}" for value in (each.p50, each.p95, each.p99)),
            )
            for name, each in found.start_quantiles().items()
        ],
    )


def kill_table(found: Measured) -> Table:
    """Promises kept and broken."""
    return Table(
        "The worker killed -9 in mid-run, then another one started",
        ("", "promised", "lost", "interrupted", "ended twice", "all back after s"),
        [
            (
                *(each.name, str(each.survival.promised), str(each.survival.lost)),
                *(str(each.survival.interrupted), str(each.survival.repeated)),
                f"{each.seconds:.1f}" if not each.survival.lost else "never",
            )
            for each in found.killed
        ],
    )


def memory_table(found: Measured) -> Table:
    """What the processes weigh."""
    parts = ("front door", "scheduler", "workers")
    return Table(
        "Memory after the run, MB; pages shared between processes count once",
        ("", *parts, "together"),
        [
            (
                name,
                *(f"{weights[part]:.0f}" if part in weights else "" for part in parts),
                f"{sum(weights.values()):.0f}",
            )
            for name, weights in found.memory.items()
        ],
    )


def tuning_table(found: Measured) -> Table:
    """How each was set up."""
    return Table("How each was set up", ("", "settings"), list(found.tuning.items()))
