"""Why a job waits: one reason binds, predictions rise with the queue. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.policy.durations import Durations
from app.policy.fairshare import Entitlement, Tier, entitlement_of
from app.policy.forecast import (
    QueueFlow,
    debt_seconds,
    error_ratio,
    most_slots,
    predict_wait,
    rates_of,
)
from app.policy.wait_reasons import Facts, WaitReason, explain, holding, not_before
from app.reads.rivals import Rivals


def lasting(seconds: float) -> Durations:
    """Jobs that all take the same, as is well known."""
    return Durations(1000.0, seconds, 0.0, seconds, seconds)


jobs_ahead = st.builds(
    lambda least, more, part, spread, runs: Durations(
        runs, least + part * more, min(spread, more), least, least + more
    ),
    st.floats(0.0, 1800.0),
    st.floats(0.0, 1800.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1800.0),
    st.floats(0.0, 1000.0),
)
flows = st.builds(
    QueueFlow,
    slots=st.integers(0, 500),
    in_flight=st.integers(0, 1000),
    jobs=jobs_ahead,
    share=st.floats(0.0, 1.0),
    under_way=st.integers(0, 500),
    started_per_second=st.none() | st.floats(0.0, 1000.0),
    starts=st.integers(0, 100),
    starts_seconds=st.floats(0.0, 60.0),
    cap=st.none() | st.integers(1, 50),
    own=st.integers(0, 100),
    elapsed_seconds=st.floats(0.0, 3600.0),
)
facts_given = st.builds(
    Facts,
    status=st.sampled_from(
        ["scheduled", "queued", "dispatched", "running", "succeeded", "dead", "cancelled"]
    ),
    pool=st.just("medium"),
    ahead=st.integers(0, 10_000),
    at_least=st.booleans(),
    flow=flows,
    due_seconds=st.none() | st.floats(-1e6, 1e6),
    dependency=st.sampled_from(["", "claude"]),
    circuit=st.sampled_from(["closed", "open", "half_open"]),
    circuit_seconds=st.floats(0, 1000),
    quota=st.booleans(),
    closed_seconds=st.floats(-100, 1000),
    calls_per_second=st.none() | st.floats(0.0, 1000.0),
    suspended=st.booleans(),
    throttled=st.booleans(),
    worker_lost=st.booleans(),
    cancelled=st.booleans(),
    broker_away=st.booleans(),
    free_full=st.booleans(),
)

BUSY = QueueFlow(slots=10, in_flight=20, jobs=lasting(2.0), share=0.5, under_way=4)
QUEUED = Facts("queued", "medium", ahead=12, at_least=False, flow=BUSY, dependency="claude")
#: Every reason a job in the queue can have, each by itself, in the order in which they bind.
ALONE = {
    WaitReason.BROKER: {"broker_away": True},
    WaitReason.CIRCUIT: {"circuit": "open", "circuit_seconds": 20.0},
    WaitReason.QUOTA: {"quota": True, "closed_seconds": 30.0},
    WaitReason.SUSPENDED: {"suspended": True, "flow": replace(BUSY, cap=0)},
    WaitReason.THROTTLE: {"throttled": True, "flow": replace(BUSY, cap=1, own=1)},
    WaitReason.CAP: {"flow": replace(BUSY, cap=5, own=5)},
    WaitReason.FREE_SLICE: {"free_full": True},
    WaitReason.NO_WORKERS: {"flow": replace(BUSY, slots=0)},
    WaitReason.SHARE: {},
}


@pytest.mark.parametrize("reason", ALONE)
def test_each_reason_is_named_alone(reason: WaitReason) -> None:
    wait = explain(replace(QUEUED, **ALONE[reason]))
    assert wait.reason is reason and not wait.also
    assert wait.detail.endswith(".")


def test_of_several_the_first_binds_and_the_others_are_told() -> None:
    facts = replace(
        QUEUED,
        status="scheduled",
        due_seconds=5.0,
        circuit="open",
        quota=True,
        closed_seconds=9.0,
        flow=replace(BUSY, slots=0, cap=3, own=3),
    )
    wait = explain(facts)
    assert (wait.reason, *wait.also) == (
        WaitReason.SCHEDULE,
        WaitReason.CIRCUIT,
        WaitReason.QUOTA,
        WaitReason.CAP,
        WaitReason.NO_WORKERS,
    )
    assert explain(replace(facts, status="queued")).reason is WaitReason.CIRCUIT
    throttled = replace(facts, status="queued", circuit="closed", closed_seconds=0, throttled=True)
    assert explain(throttled).reason is WaitReason.THROTTLE


def test_quota_holds_what_nothing_else_does_while_slots_are_free() -> None:
    idle = replace(QUEUED, quota=True, flow=replace(BUSY, in_flight=3))
    assert explain(idle).reason is WaitReason.QUOTA
    assert explain(replace(idle, flow=BUSY)).reason is WaitReason.SHARE


@given(facts_given)
def test_there_is_always_one_reason_and_their_order_is_fixed(facts: Facts) -> None:
    reasons = holding(facts)
    order = list(WaitReason)
    assert reasons
    assert [order.index(reason) for reason in reasons] == sorted(
        {order.index(reason) for reason in reasons}
    )
    wait = explain(facts)
    assert wait.detail
    if facts.status not in ("queued", "scheduled", "dispatched"):
        assert len(reasons) == 1
    if wait.forecast is not None and wait.seconds is not None:
        assert wait.forecast.earliest <= wait.seconds
        assert wait.forecast.latest is None or wait.seconds <= wait.forecast.latest
        assert wait.seconds >= 0
        if facts.status in ("queued", "scheduled"):
            assert wait.seconds >= not_before(facts)


@given(st.integers(0, 20_000), st.integers(0, 20_000), flows, st.floats(0, 1e5), st.floats(0, 1e5))
def test_predictions_rise_with_the_line_and_with_what_must_pass(
    ahead: int, more: int, flow: QueueFlow, seconds: float, longer: float
) -> None:
    near = predict_wait(ahead, flow, seconds)
    far = predict_wait(ahead + more, flow, seconds + longer)
    if near is None or far is None:
        assert far is None
        return
    assert far.seconds >= near.seconds and (far.latest or 0) >= (near.latest or 0)
    assert 0 <= near.earliest <= near.seconds <= (near.latest or 0)


@given(flows, st.integers(0, 1000))
def test_nobody_is_promised_a_start_without_workers(flow: QueueFlow, ahead: int) -> None:
    assert predict_wait(ahead, replace(flow, slots=0)) is None


def expected(ahead: int, flow: QueueFlow) -> float:
    wait = predict_wait(ahead, flow)
    assert wait is not None
    return wait.seconds


@given(st.integers(0, 5000), flows)
def test_a_range_lies_within_what_the_shortest_and_the_longest_runs_would_take(
    ahead: int, flow: QueueFlow
) -> None:
    full = replace(
        flow, slots=max(1, flow.slots), in_flight=1000, cap=None, started_per_second=None
    )
    wait = predict_wait(ahead, full)
    if wait is None:
        return
    before, slots = ahead + 1 + full.under_way, full.slots
    assert wait.earliest >= before * full.jobs.least / slots * (1 - 1e-6)
    most = max(0.001, full.jobs.most) * before / (slots * full.share)
    assert wait.latest is not None and wait.latest <= most * (1 + 1e-6)


@given(flows, st.integers(0, 1000), st.floats(0.1, 1000.0))
def test_who_had_more_than_its_share_may_have_to_wait_for_the_others(
    flow: QueueFlow, ahead: int, debt: float
) -> None:
    busy = replace(flow, slots=max(1, flow.slots), in_flight=1000, cap=None)
    usual, late = predict_wait(ahead, busy), predict_wait(ahead, replace(busy, debt_seconds=debt))
    if usual is None or late is None:
        assert usual is late
        return
    assert usual.latest is not None and late.latest is not None
    assert late.latest >= max(usual.latest, debt) * (1 - 1e-9)
    assert late.latest <= usual.latest + debt * (1 + 1e-9)
    assert (late.earliest, late.seconds) == (usual.earliest, usual.seconds)


@given(
    st.floats(0.01, 0.99),
    st.integers(1, 500),
    st.floats(-1000.0, 1000.0),
    st.lists(st.floats(0.001, 600.0), max_size=50),
    st.floats(0.0, 100.0),
)
def test_a_debt_is_what_was_had_and_is_in_flight_and_never_negative(
    share: float, slots: int, had: float, in_flight: list[float], usual: float
) -> None:
    debt = debt_seconds(share, slots, had, in_flight, usual)
    assert 0 <= debt <= max(0.0, had + sum(in_flight)) / (share * slots) * (1 + 1e-9)
    assert debt_seconds(share, slots, had + 50.0, in_flight, usual) >= debt
    assert debt_seconds(1.0, slots, had, in_flight, usual) == 0, "nobody else waits"


def test_a_tenant_with_seven_long_runs_on_three_slots_waits_for_them() -> None:
    assert debt_seconds(0.0833, 40, 0.0, [10.0] * 7, 1.6) == pytest.approx(17.2, abs=0.5)
    assert debt_seconds(0.8333, 40, 0.0, [3.9] * 33, 1.6) < 0.2, "as many as its share is"


def test_the_less_is_known_the_wider_is_the_range() -> None:
    def width(**changes: float) -> float:
        wait = predict_wait(50, replace(BUSY, jobs=replace(lasting(2.0), least=0.1, **changes)))
        assert wait is not None and wait.latest is not None
        return wait.latest - wait.earliest

    assert width() == 0
    known = width(spread=1.0, most=10.0)
    assert 0 < known < width(spread=3.0, most=10.0)
    assert known < width(spread=1.0, most=10.0, runs=3.0)
    disagreeing = replace(BUSY, started_per_second=5.0, starts=20, starts_seconds=6.0)
    wait = predict_wait(20, disagreeing)
    assert wait is not None and wait.latest == pytest.approx(25 / 2.5), "by its share"
    assert wait.seconds == pytest.approx(25 / (5.0 * 2.5) ** 0.5), "between both"
    assert wait.earliest == pytest.approx(25 / 5.0), "as measured"


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"quota": True, "closed_seconds": 30.0}, WaitReason.QUOTA, "quota of claude is used up"),
        ({"circuit": "open"}, WaitReason.CIRCUIT, "keeps failing and is not called"),
        ({"flow": replace(BUSY, slots=0)}, WaitReason.NO_WORKERS, "has no workers"),
        ({}, WaitReason.STARTING, "a worker is about to start it"),
    ],
)
def test_a_job_at_the_broker_says_what_a_worker_would_hand_it_back_for(
    changes: dict[str, Any], reason: WaitReason, words: str
) -> None:
    wait = explain(replace(QUEUED, status="dispatched", **changes))
    assert wait.reason is reason and words in wait.detail
    if reason is WaitReason.QUOTA:
        assert wait.seconds is not None and wait.seconds >= 30


def test_a_line_that_was_not_counted_to_its_end_is_estimated() -> None:
    facts = replace(QUEUED, ahead=10_000, at_least=True, flow=replace(BUSY, under_way=0))
    counted, all_of_it = explain(facts).seconds, explain(replace(facts, estimated_ahead=99_999.0))
    assert counted is not None and all_of_it.seconds == pytest.approx(10 * counted, rel=0.01)


def test_prediction_is_what_is_ahead_over_the_rate() -> None:
    measured = replace(BUSY, started_per_second=10.0, starts=20, starts_seconds=6.0)
    between = (2.5 * 5.0) ** 0.5
    assert expected(15, measured) == pytest.approx((15 + 1 + 4) / between), "10 slots: 5 a second"
    few = replace(measured, starts=19)
    assert expected(15, few) == pytest.approx(20 / 2.5), "that is no rate"
    moments = replace(measured, jobs=lasting(0.01), started_per_second=40.0)
    assert expected(15, moments) == pytest.approx(20 / 40.0), "500 a second cannot be started"
    assert rates_of(BUSY)[1] == pytest.approx(10 * 0.5 / 2.0)
    assert rates_of(replace(BUSY, cap=2))[1] == pytest.approx(2 / 2.0)
    idle = replace(BUSY, in_flight=4, under_way=0)
    assert expected(2, idle) == 0.0, "half of six free slots"
    assert expected(3, idle) == pytest.approx(1 / 2.5)


@pytest.mark.parametrize(
    "flow",
    [
        replace(BUSY, started_per_second=20.0, starts=10, starts_seconds=1.0),
        replace(BUSY, started_per_second=0.02, starts=10, starts_seconds=20.0),
    ],
    ids=["slots that were idle are filled", "between two waves"],
)
def test_rate_that_is_not_steady_is_not_believed(flow: QueueFlow) -> None:
    assert rates_of(flow)[1] == rates_of(BUSY)[1]


@given(flows, st.integers(0, 10_000))
def test_nothing_is_promised_sooner_than_all_its_slots_could_do_it(
    flow: QueueFlow, ahead: int
) -> None:
    full = replace(flow, slots=max(1, flow.slots), in_flight=1000)
    wait = predict_wait(ahead, full)
    least = ahead * max(0.001, full.jobs.mean) / most_slots(full)
    assert wait is None or wait.seconds >= least * (1 - 1e-9)


@pytest.mark.parametrize(("ahead", "wanted"), [(0, 4.0), (1, 10.0), (2, 16.0)])
def test_at_its_cap_a_tenant_waits_for_its_own_jobs_whatever_is_idle(
    ahead: int, wanted: float
) -> None:
    flow = QueueFlow(10, 1, lasting(6.0), share=1.0, cap=1, own=1, elapsed_seconds=2.0)
    wait = explain(replace(QUEUED, ahead=ahead, flow=flow))
    assert (wait.reason, wait.seconds) == (WaitReason.CAP, pytest.approx(wanted))
    assert "1 job in flight" in wait.detail
    overdue = predict_wait(0, replace(flow, elapsed_seconds=60.0))
    assert overdue is not None and overdue.seconds > 0


def test_paced_job_waits_for_its_turn_whatever_is_idle() -> None:
    idle = replace(BUSY, in_flight=0, share=1.0)
    facts = replace(QUEUED, ahead=0, quota=True, calls_per_second=0.5, flow=idle)
    assert explain(facts).seconds == pytest.approx(2.0)
    assert explain(replace(facts, ahead=4)).seconds == pytest.approx(10.0)
    assert explain(replace(facts, calls_per_second=None)).seconds is None
    assert explain(replace(facts, calls_per_second=None, closed_seconds=9.0)).seconds == 9.0


claims = st.sampled_from(
    [entitlement_of(tier, weight) for tier in list(Tier)[1:] for weight in (None, 3.0, 250.0)]
)


@given(st.lists(claims, min_size=1, max_size=8), st.integers(0, 3))
@settings(max_examples=40)
def test_shares_of_all_that_wait_add_up_to_one(waiting: list[Entitlement], free: int) -> None:
    shares = [
        Rivals(Counter(waiting[:place] + waiting[place + 1 :]), free).share_of(own)
        for place, own in enumerate(waiting)
    ]
    group = 0.05 if free else 0.0  # they have what their slice leaves them, at most
    assert 1 - group - 1e-6 <= sum(shares) <= 1 + 1e-6
    assert Rivals(Counter(waiting), more=True).share_of(waiting[0], 1e9) < 1e-5


def test_open_circuit_is_waited_for_first() -> None:
    held = replace(QUEUED, circuit="open", circuit_seconds=20.0)
    free = explain(QUEUED).seconds
    assert free is not None
    assert explain(held).seconds == pytest.approx(40.0 + free)
    wait = explain(held).forecast
    assert wait is not None and wait.latest is None, "nobody knows whether it is back then"


def test_a_reason_that_concerns_everybody_is_told() -> None:
    refused = replace(QUEUED, circuit="open", circuit_reason="the API key was refused (401)")
    told = "claude: the API key was refused (401); it is called again in 60 s."
    assert explain(refused).detail == told
    told = "claude: the API key was refused (401); a few jobs probe whether it is back."
    assert explain(replace(refused, circuit="half_open")).detail == told
    assert "refused" not in explain(replace(refused, circuit="closed")).detail


def test_error_is_a_part_of_the_wait_and_short_waits_count_as_a_second() -> None:
    assert error_ratio(12.0, 10.0) == pytest.approx(0.2)
    assert error_ratio(0.0, 10.0) == pytest.approx(1.0)
    assert error_ratio(0.3, 0.1) == pytest.approx(0.2)
