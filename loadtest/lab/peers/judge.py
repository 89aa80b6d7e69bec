"""The comparison's report: tables, sentences and bars from what was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.bars import Bar
from loadtest.lab.experiment import Size
from loadtest.lab.peers.guarantees import GUARANTEES
from loadtest.lab.peers.measured import CELERY, FAIRLINE, Measured, Quantiles
from loadtest.lab.peers.tables import (
    accept_table,
    jobs_table,
    kill_table,
    memory_table,
    poll_table,
    start_table,
    tuning_table,
)
from loadtest.report import Report
from loadtest.samples import Sample

TITLE = "Fairline and its peers"


@dataclass(frozen=True, slots=True)
class Required:
    """What Fairline must reach."""

    accept_of_celery: float
    accept_of_empty: float
    poll_of_empty: float
    jobs_of_best: float
    jobs_of_celery: float
    start_over_celery_ms: float
    line_ratio: float


REQUIRED = {
    Size.FULL: Required(5.5, 0.75, 0.8, 1.0, 5.0, 5.0, 1.3),
    # One short round each: half the distance is lost in noise.
    Size.QUICK: Required(4.0, 0.6, 0.65, 0.8, 3.5, 10.0, 1.8),
}
#: A miniature is too short for rates; it still must not lose anything.
REQUIRED[Size.MINI] = Required(0.0, 0.0, 0.0, 0.0, 0.0, 1e9, 1e9)


def judge(found: Measured, size: Size) -> Report:
    """What was measured, in words, tables and bars."""
    report = Report("peers", TITLE)
    report.tables = [
        accept_table(found),
        poll_table(found),
        jobs_table(found),
        start_table(found),
        kill_table(found),
        memory_table(found),
        GUARANTEES,
        tuning_table(found),
    ]
    report.bars = bars(found, REQUIRED[size])
    report.findings = findings(found)
    report.notes = [
        "All contenders ran on one machine, on the same PostgreSQL and RabbitMQ, one after the "
        "other in turns, each alone, with two front-door processes. While the accept rate of a "
        "peer is taken its workers do not run; Fairline's scheduler and worker do.",
        "The peers and the empty Flask route are served by gunicorn's own gevent worker, Fairline "
        "by the worker class that its gunicorn.conf.py names. Where these differ the empty route "
        "is no ceiling for Fairline, and part of its lead in requests a second is the server's, "
        "not the queue's.",
        "In a closed loop a green server may serve some connections far more often than others: "
        "where p50 is far below connections divided by rate, it is that of the favoured ones.",
        "Dramatiq keeps no record of a job: it is counted when its function returns, before the "
        "message is acknowledged. All others are counted by their own committed rows.",
        "For the kill, Fairline's lease and Procrastinate's heartbeat were shortened to 4 s so "
        "that one can watch; their defaults are 10 s and 30 s.",
    ]
    report.data = dict(found.data())
    return report


def bars(found: Measured, required: Required) -> list[Bar]:
    """What must be shown."""
    accept, jobs = found.rates("accept", " @few"), found.rates("no-op end to end")
    best = max(sample.rate for name, sample in jobs.items() if name != FAIRLINE)
    starts = found.start_quantiles()
    few, many = found.connections
    empty, empty_at_many = (found.sample(f"empty Flask route @{at}").rate for at in ("few", "many"))
    lost = next(each.survival.lost for each in found.killed if each.name == FAIRLINE)
    line = Quantiles.of(found.lined_ms).p95 / max(1e-9, Quantiles.of(found.idle_ms).p95)
    polls = [
        Bar(
            f"polls, {kind}, of the empty route at {few} connections",
            *(ratio(found.sample(f"poll: {kind} @few").rate, empty), ">="),
            *(required.poll_of_empty, " x"),
        )
        for kind in ("304", "terminal")
    ]
    return [
        Bar(
            f"accept rate at {few} connections, of plain Celery's",
            *(ratio(accept[FAIRLINE].rate, accept[CELERY].rate), ">="),
            *(required.accept_of_celery, " x"),
        ),
        Bar(
            f"accept rate at {many} connections, of the empty route's",
            *(ratio(found.sample(f"accept: {FAIRLINE} @many").rate, empty_at_many), ">="),
            *(required.accept_of_empty, " x"),
        ),
        *polls,
        Bar(
            "no-op jobs, HTTP batch to done, of the best peer's",
            *(ratio(jobs[FAIRLINE].rate, best), ">=", required.jobs_of_best, " x"),
        ),
        Bar(
            "no-op jobs, HTTP batch to done, of plain Celery's",
            *(ratio(jobs[FAIRLINE].rate, jobs[CELERY].rate), ">="),
            *(required.jobs_of_celery, " x"),
        ),
        Bar(
            "submit to start when idle, p50, beyond plain Celery's",
            *(starts[FAIRLINE].p50 - starts[CELERY].p50, "<="),
            *(required.start_over_celery_ms, " ms"),
        ),
        Bar(
            f"front-door p95 with {found.waiting:,} jobs waiting, of the idle one",
            *(line, "<=", required.line_ratio, " x"),
        ),
        Bar("jobs lost to kill -9 of the worker", lost, "<=", 0),
        Bar("unexpected answers", sum(s.unexpected for s in found.samples), "<=", 0),
    ]


def ratio(ours: float, theirs: float) -> float:
    """How many times theirs; 0 if there is nothing to compare with."""
    return ours / theirs if theirs > 0 else 0.0


def findings(found: Measured) -> list[str]:
    """The most important in sentences, wins and losses alike."""
    accept, jobs = found.rates("accept", " @few"), found.rates("no-op end to end")
    drains, naps = found.rates("drain"), found.rates("10-ms end to end")
    starts = found.start_quantiles()
    sentences = [
        f"Through HTTP, one job a request at {found.connections[0]} connections, Fairline accepts "
        f"{accept[FAIRLINE].rate:,.0f} a second, {versus(accept)}.",
        f"From HTTP batches to done it runs {jobs[FAIRLINE].rate:,.0f} no-op jobs a second, "
        f"{versus(jobs)}; draining a full line {drains[FAIRLINE].rate:,.0f}, {versus(drains)}; "
        f"of 10-ms jobs {naps[FAIRLINE].rate:,.0f}, {versus(naps)}.",
        f"One job on an idle stack starts {starts[FAIRLINE].p50:.1f} ms after it was sent "
        f"({', '.join(f'{n} {q.p50:.1f}' for n, q in starts.items() if n != FAIRLINE)}).",
        "Lost when the worker is killed -9: "
        + ", ".join(f"{k.name} {k.survival.lost} of {k.survival.promised}" for k in found.killed)
        + ".",
    ]
    behind = losses(found)
    if behind:
        sentences.append(f"Where Fairline is behind: {'; '.join(behind)}.")
    return sentences


def versus(rates: dict[str, Sample]) -> str:
    """The others' figures in words."""
    return "against " + ", ".join(
        f"{sample.rate:,.0f} of {name}" for name, sample in rates.items() if name != FAIRLINE
    )


def losses(found: Measured) -> list[str]:
    """Every figure in which some peer is ahead."""
    behind = []
    for what, words in (
        ("accept", "submissions"),
        ("no-op end to end", "no-op jobs end to end"),
        ("drain", "no-op jobs from a full line"),
        ("10-ms end to end", "10-ms jobs"),
    ):
        rates = found.rates(what, " @few" if what == "accept" else "")
        ours = rates[FAIRLINE].rate
        ahead = [f"{name} {each.rate:,.0f}/s" for name, each in rates.items() if each.rate > ours]
        if ahead:
            behind.append(f"{words} ({', '.join(ahead)} against {ours:,.0f}/s)")
    starts = {name: each.p50 for name, each in found.start_quantiles().items()}
    sooner = [f"{name} {p50:.1f} ms" for name, p50 in starts.items() if p50 < starts[FAIRLINE]]
    if sooner:
        behind.append(f"submit to start ({', '.join(sooner)} against {starts[FAIRLINE]:.1f} ms)")
    weights = {name: sum(parts.values()) for name, parts in found.memory.items()}
    lighter = [f"{name} {mb:.0f} MB" for name, mb in weights.items() if mb < weights[FAIRLINE]]
    if lighter:
        behind.append(f"memory ({', '.join(lighter)} against {weights[FAIRLINE]:.0f} MB)")
    return behind
