"""What a job costs: what the figures say, without any service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.lab.cost import PLANS
from loadtest.lab.cost.drawing import draw
from loadtest.lab.cost.verdict import Grown, Measured, growth, judge, waits
from loadtest.lab.cost.waits import LOCK, WAIT_KINDS, Wait, Waited, statement_name
from loadtest.lab.experiment import Size
from loadtest.lab.peers.costs import KINDS, Cost

NAMES = ("Fairline", "plain Celery", "Dramatiq, confirmed", "Procrastinate")
#: At 200 jobs per second: 0.75 ms per job, 0.25 of them in PostgreSQL.
CORES = {"scheduler": 0.02, "workers": 0.05, "Flower": 0.01, "RabbitMQ": 0.02, "PostgreSQL": 0.05}
CLAIM = "EXECUTE claim_0123456789ab ('{1,2}', 5)"


def cost(name: str = "Fairline", ms: int = 50, offered: float = 100.0, times: float = 1.0) -> Cost:
    cores = {kind: times * used for kind, used in {**CORES, "API": 0.05}.items()}
    return Cost(name, ms, offered, 200.0, cores, 1800.0)


def waited(locked: int = 0) -> Waited:
    found = Waited()
    for number in range(100):
        found.add([("CPU", "", CLAIM), ("IO", "WALSync", CLAIM)])
        if number < locked:
            found.counts[Wait("Lock", "tuple", "claim")] += 1
    return found


def measured() -> Measured:
    """A run that does as well as it must."""
    found = Measured(slots=200)
    found.steady = [
        cost(name, ms, rate, 1.0 + NAMES.index(name))
        for rate in (20.0, 100.0)
        for ms in (0, 10, 50, 200, 1500)
        for name in NAMES
    ]
    full = Cost("Fairline", 50, 0.0, 200.0, CORES, 1200.0)
    found.workers = [
        Grown(n, replace(full, rate=200.0 * n, cores={k: n * v for k, v in CORES.items()}),
              waited(n), 200.0 * n, 500)
        for n in (1, 2, 4, 8)
    ]  # fmt: skip
    found.celery = replace(full, name="plain Celery", cores={"workers": 0.5, "RabbitMQ": 0.2})
    large = replace(full, ms=1500, rate=498.0, cores={k: 2.5 * v for k, v in CORES.items()})
    found.simulated = Grown(1, large, waited(), 500.0, 700)
    accepted = Cost("Fairline", 50, 0.0, 3000.0, {"API": 1.0, "scheduler": 0.01, "PostgreSQL": 0.6})
    found.apis = [Grown(n, accepted, waited()) for n in (1, 2, 4)]
    return found


def test_processor_time_is_divided_by_the_jobs_that_ended() -> None:
    one = Cost("Fairline", 50, 0.0, 200.0, CORES)
    assert one.of("workers") == pytest.approx(0.25)
    assert (one.but_postgres, one.total) == (pytest.approx(0.5), pytest.approx(0.75))
    assert one.of("API") == 0.0, "it did not run"
    assert one.per_core("scheduler") == pytest.approx(10_000)
    assert replace(one, rate=0.0).total == one.per_core("API") == 0.0


@given(
    st.dictionaries(st.sampled_from(KINDS), st.floats(0.001, 8.0), min_size=1),
    st.floats(0.1, 10_000),
)
def test_kinds_add_up_and_more_jobs_for_the_same_time_are_cheaper(
    cores: dict[str, float], rate: float
) -> None:
    one = Cost("Fairline", 50, 0.0, rate, cores)
    assert sum(one.of(kind) for kind in KINDS) == pytest.approx(one.total)
    assert one.but_postgres <= one.total
    assert replace(one, rate=2 * rate).total == pytest.approx(one.total / 2)
    assert one.per_core(*KINDS) * one.total == pytest.approx(1000)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (CLAIM, "claim"),
        ("EXECUTE take_arrivals_0123456789ab ('medium')", "take_arrivals"),
        ("PREPARE claim_0123456789ab (int[]) AS UPDATE jobs SET x = 1", "prepare claim"),
        ("WITH due AS (SELECT id FROM jobs FOR UPDATE SKIP LOCKED) UPDATE jobs SET", "update jobs"),
        ("SELECT a FROM pools p JOIN jobs ON true", "select pools"),
        ("INSERT INTO job_count_deltas (a) SELECT b FROM jobs", "insert into job_count_deltas"),
        ("SELECT 1 FROM unnest('{1}'::int[]) JOIN jobs ON true", "select jobs"),
        ("COMMIT", "COMMIT"),
    ],
)  # fmt: skip
def test_a_statement_is_named_by_what_it_does(query: str, name: str) -> None:
    assert statement_name(query) == name


def test_backends_are_averaged_over_all_looks() -> None:
    found = waited(locked=25)
    assert found.by_kind() == {"CPU": 1.0, "IO": 1.0, "LWLock": 0.0, "Lock": 0.25, "other": 0.0}
    assert found.longest(1) == [(Wait("IO", "WALSync", "claim"), 1.0)]
    assert dict(found.longest(9))[Wait("Lock", "tuple", "claim")] == 0.25
    found.add([("Client", "ClientRead", "COPY jobs TO STDOUT")])
    assert found.by_kind()["other"] == pytest.approx(1 / 101)


def test_nothing_was_executed_at_any_look() -> None:
    assert Waited().by_kind() == dict.fromkeys(WAIT_KINDS, 0.0)
    assert Waited(looks=3).longest(5) == []


def test_a_run_that_keeps_every_bar_passes() -> None:
    report = judge(measured(), Size.FULL)
    assert report.passed, [bar for bar in report.bars if not bar.passed]
    claims = {bar.claim: bar.measured for bar in report.bars}
    assert claims["50-ms job, full queue, all but PostgreSQL, of plain Celery's"] == 0.5 / 3.5
    assert claims["50-ms job, full queue, PostgreSQL, of it"] == pytest.approx(0.25 / 3.5)
    assert claims["1500-ms job, full queue, of 500/s"] == pytest.approx(0.996)
    assert claims["50-ms job at 100/s, of plain Celery's"] == pytest.approx(0.5)
    assert claims["backends that wait for a lock, on average"] == pytest.approx(0.08)


def test_what_a_core_of_scheduler_and_postgresql_can_do_is_reported() -> None:
    found = measured()
    said = judge(found, Size.FULL).findings[-1]
    assert "10,000 jobs per second" in said
    assert "0.20 ms to accept a job and 0.25 ms for the rest" in said
    assert "2,222 jobs per second and core" in said


@pytest.mark.parametrize("what", ["dear", "slow", "alone", "empty", "locked", "grown", "lost"])
def test_one_figure_beyond_its_bar_fails_the_run(what: str) -> None:
    found = measured()
    first, last = found.workers[0], found.workers[-1]
    if what == "dear":
        found.workers[0] = replace(first, cost=replace(first.cost, cores={"Flower": 1.0}))
    elif what == "slow":
        found.workers[0] = replace(first, cost=replace(first.cost, rate=190.0))
    elif what == "alone":
        found.celery = None
    elif what == "empty":
        found.workers[-1] = replace(last, left=0)
    elif what == "locked":
        found.workers[-1] = replace(last, waited=waited(locked=50))
    elif what == "grown":
        found.workers[-1] = replace(last, cost=replace(last.cost, rate=200.0))
    else:
        found.steady[0] = replace(found.steady[0], lost=1)
    assert not judge(found, Size.FULL).passed
    assert judge(found, Size.MINI).passed is (what in ("dear", "slow", "locked", "grown"))


def test_growth_is_the_last_of_the_first() -> None:
    found = measured()
    assert growth(found.workers) == pytest.approx(1.0)
    assert growth([found.workers[0], replace(found.workers[0], cost=cost(times=2.0))]) > 2.0


def test_waits_of_both_kinds_of_processes_are_in_one_table() -> None:
    found = measured()
    found.apis[-1].waited.counts[Wait(LOCK, "transactionid", "admit")] = 10
    table = waits(found)
    assert ("admit", "Lock", "transactionid", "", "0.100") in table
    assert ("claim", "IO", "WALSync", "1.000", "1.000") in table


def test_the_report_has_every_contender_and_its_pictures_are_drawn(tmp_path: Path) -> None:
    found = measured()
    slow, fast, *_ = judge(found, Size.FULL).tables
    assert len(slow.rows) == len(fast.rows) == 20
    assert all(len(row) == len(fast.headings) for row in fast.rows)
    drawn = draw(found, tmp_path)
    assert drawn[0].file == "cost-100.png", "the summary shows the first"
    for each in drawn:
        assert (tmp_path / each.file).read_bytes().startswith(b"\x89PNG")


def test_every_size_has_slots_for_its_longest_jobs() -> None:
    for plan in PLANS.values():
        assert plan.slots >= 1.2 * max(plan.rates) * max(plan.lengths_ms) / 1000
        assert plan.slots % 2 == 0, "some contenders have two processes"
