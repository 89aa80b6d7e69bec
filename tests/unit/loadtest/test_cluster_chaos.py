"""Plans and gaps of chaos runs on a cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.cluster_chaos.faults import FAULTS, chosen
from loadtest.cluster_chaos.gaps import (
    Gap,
    Outage,
    after_postgres,
    after_rabbitmq,
    gaps,
    longest,
    own_seconds,
    table,
)
from loadtest.cluster_chaos.plan import (
    ENGINES,
    TARGETS,
    PlannedFault,
    each_kind,
    engine_faults,
    process_faults,
)
from loadtest.cluster_chaos.run import Fault

SEEDS = st.integers(0, 10**9)


@given(SEEDS)
def test_a_seed_gives_the_same_faults_again(seed: int) -> None:
    for plan in (engine_faults, process_faults):
        assert list(islice(plan(seed), 80)) == list(islice(plan(seed), 80))
    assert each_kind(2, seed) == each_kind(2, seed)


@given(SEEDS)
def test_a_round_has_every_kind_as_often_as_the_table_says(seed: int) -> None:
    turn = [
        fault.kind for fault in islice(engine_faults(seed), sum(n for n, *_ in ENGINES.values()))
    ]
    assert {kind: turn.count(kind) for kind in ENGINES} == {k: n for k, (n, *_) in ENGINES.items()}


@given(SEEDS)
def test_faults_last_as_long_as_the_table_says(seed: int) -> None:
    for fault in (*islice(engine_faults(seed), 40), *each_kind(1, seed)):
        _, least, most = ENGINES[fault.kind]
        assert least <= fault.seconds <= most
    assert {fault.target for fault in islice(process_faults(seed), 200)} == set(TARGETS)


def test_every_planned_kind_can_be_done() -> None:
    assert FAULTS.keys() == ENGINES.keys()


@given(st.floats(0, 1, exclude_max=True), st.sampled_from([None, 1, 2, 3]))
def test_half_of_the_faults_befall_the_leader(choice: float, leader: int | None) -> None:
    number = chosen(choice, leader)
    assert number in (1, 2, 3)
    if leader is not None:
        assert (number == leader) == (choice < 0.5)


TIMES = st.lists(st.floats(0, 100), max_size=30).map(sorted)


@given(TIMES, st.floats(0, 50), st.floats(50, 100))
def test_gaps_are_all_of_the_time_between_successes(
    times: list[float], since: float, until: float
) -> None:
    found = gaps(times, since, until)
    assert found[0].begin == pytest.approx(since) and found[-1].end >= until
    assert all(one.end == pytest.approx(later.begin) for one, later in pairwise(found))
    for gap in found:
        assert not any(gap.begin + 1e-6 < moment < gap.end - 1e-6 for moment in times)


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1, 2, 3, 8, 9], Gap(5, 8)),
        ([1, 2, 20], Gap(18, 20)),  # the end of the gap may be after the fault's
        ([0.5, 9.5], Gap(8.5, 9.5)),  # what was before the fault does not count
        ([], Gap(9, 10)),
    ],
)
def test_the_longest_gap(times: list[float], gap: Gap) -> None:
    assert longest(gaps(times, 1, 10)) == gap


GAPS = st.lists(st.builds(Gap, st.floats(0, 20), st.floats(0, 100)), max_size=6)


@given(GAPS, GAPS)
def test_the_own_time_is_at_most_the_gap_and_what_engines_do_not_cover(
    service: list[Gap], engines: list[Gap]
) -> None:
    own = own_seconds(service, engines)
    assert 0 <= own <= longest(service).seconds + 1e-6
    assert own_seconds(service, [*engines, Gap(200.0, 150.0)]) == pytest.approx(0)
    assert own_seconds(service, []) == pytest.approx(
        max((gap.seconds for gap in service if gap.seconds >= 1), default=0)
    )


@pytest.mark.parametrize(
    ("service", "engine", "own"),
    [
        (Gap(24.5, 24.5), Gap(22.0, 22.0), 2.5),
        (Gap(30.0, 35.0), Gap(0.5, 58.0), 30.0),  # not at the same time
        (Gap(30.0, 35.0), Gap(1.2, 50.0), 30.0),
        (Gap(0.4, 30.0), Gap(0.3, 5.0), 0.0),  # as usual
        (Gap(4.0, 3.0), Gap(4.0, 4.0), 1.0),  # it began before
    ],
)
def test_what_an_engine_took_is_not_fairline_s_own(service: Gap, engine: Gap, own: float) -> None:
    assert own_seconds([service], [engine]) == pytest.approx(own)


def outage(kind: str = "machine off", own: float = 0.0, **given_gaps: Gap) -> Outage:
    none = Gap(0.2, 5.0)
    names = ("postgres", "rabbitmq", "accepting", "ending")
    each = {name: given_gaps.get(name, none) for name in names}
    return Outage(kind, "1", 0.0, 40.0, 60.0, **each, own=own)


def test_own_times_are_told_apart_by_whether_postgresql_was_away() -> None:
    found = [outage(own=2.5, postgres=Gap(22.0, 22.0)), outage(own=1.5), outage(own=0.5)]
    assert (after_postgres(found), after_rabbitmq(found)) == (2.5, 1.5)
    assert (after_postgres([]), after_rabbitmq([])) == (0.0, 0.0)


def test_another_leader_of_postgresql_counts_although_there_was_no_time_without_one() -> None:
    found = [replace(outage("patroni frozen", own=2.5), promoted=True), outage(own=0.5)]
    assert (after_postgres(found), after_rabbitmq(found)) == (2.5, 0.5)


def test_a_lost_machine_must_not_be_waited_for() -> None:
    late = Gap(41.0, 41.0)
    assert outage(accepting=late).stopped
    assert not outage(accepting=Gap(25.0, 25.0)).stopped
    assert not outage(accepting=Gap(0.4, 40.2)).stopped, "as usual"
    assert not outage(accepting=Gap(3.0, 58.0)).stopped, "when it was back already"
    assert not outage("no way to PostgreSQL", accepting=late).stopped


def test_the_table_has_a_row_for_each_kind() -> None:
    rows = table([outage(), outage("switchover"), outage(postgres=Gap(22.0, 22.0))])
    assert [row[:3] for row in rows] == [
        ("machine off", "2", "11.1  22.0"),
        ("switchover", "1", "0.2  0.2"),
    ]


def test_a_fault_accounts_only_for_runs_that_it_could_have_cost() -> None:
    def happened(kind: str, target: str = "", pids: tuple[int, ...] = ()) -> Fault:
        return Fault(PlannedFault(kind, 0.5, target=target), "machine-1", 0.0, pids=pids)

    worker = "worker-medium-1.5f@machine-1:abcdef:7"
    killed = happened("killed", "worker-medium-1", (7,))
    assert killed.may_lose(worker) and not killed.may_delay(worker)
    assert not killed.may_lose(worker.replace("machine-1", "machine-2"))
    assert not killed.may_lose(worker.replace(":7", ":8"))
    assert happened("frozen", "worker-medium-1", (7,)).may_delay("@machine-1:7")
    assert happened("postgres killed").may_delay("@machine-3:9")
    for kind in ("rabbitmq killed", "etcd frozen", "rolling restart of RabbitMQ"):
        assert not happened(kind).may_lose(worker)
