"""No tick is made twice, none is lost but by the schedule's own wish, whatever the outages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.tenants.cron import Rule, next_tick, read_rule
from app.tenants.ticks import (
    LATE_SECONDS,
    MOST_MADE_UP,
    CatchUp,
    Overlap,
    TickDecision,
    TickPolicy,
    decide,
    drop_due,
    ticks_between,
)

BERLIN = "Europe/Berlin"
#: The evening before clocks are put back.
START = datetime(2026, 10, 24, 20, 0, tzinfo=UTC)
RULES = [read_rule(cron, BERLIN) for cron in ("*/7 * * * *", "30 2 * * *", "0 * * * *")]
LATE = timedelta(seconds=LATE_SECONDS)

policies = st.builds(TickPolicy, st.sampled_from(Overlap), st.sampled_from(CatchUp))
#: Seconds between two looks: a turn, a change of the leader, an outage.
pauses = st.lists(
    st.one_of(st.floats(0.2, 2), st.floats(2, 60), st.floats(60, 20_000)),
    min_size=1,
    max_size=25,
)


def first_of(rule: Rule, after: datetime = START) -> datetime:
    tick = next_tick(rule, after)
    assert tick is not None
    return tick


@given(st.sampled_from(RULES), policies, pauses, st.integers(1, 100), st.randoms())
@settings(max_examples=100)
def test_every_tick_is_made_skipped_missed_or_still_to_come(
    rule: Rule, policy: TickPolicy, waits: list[float], most: int, chance: Random
) -> None:
    now, next_at = START, first_of(rule)
    made: list[datetime] = []
    gone: list[datetime] = []
    for seconds in waits:
        now += timedelta(seconds=seconds)
        busy = chance.random() < 0.3
        decision = decide(rule, policy, next_at=next_at, now=now, busy=busy, most=most)
        if decision.missed:
            first, last = decision.missed
            assert first == next_at
            gone += [first, *ticks_between(rule, first, last)]
        if decision.skipped:
            assert busy and policy.overlap is Overlap.SKIP
            gone.append(decision.skipped)
        assert len(decision.made) <= most
        if policy.overlap is Overlap.SKIP:
            assert len(decision.made) <= (not busy), "jobs would overlap"
        if policy.catch_up is CatchUp.NONE:
            assert all(now - tick <= LATE for tick in decision.made)
        made += decision.made
        assert decision.next_at is not None
        assert decision.next_at > now or len(decision.made) == most, "nothing is left lying"
        next_at = decision.next_at
    assert all(earlier < later for earlier, later in pairwise(made))
    wanted = [tick for tick in ticks_between(rule, START, now) if tick < next_at]
    assert sorted(made + gone) == wanted


@given(pauses, st.integers(1, 5))
@settings(max_examples=40)
def test_all_ticks_are_made_up_for_however_they_are_cut_into_turns(
    waits: list[float], most: int
) -> None:
    rule, policy = RULES[2], TickPolicy(catch_up=CatchUp.ALL)
    now, next_at, made = START, first_of(rule), list[datetime]()
    for seconds in waits:
        now += timedelta(seconds=seconds)
        while next_at <= now:
            decision = decide(rule, policy, next_at=next_at, now=now, most=most)
            assert decision.next_at is not None and decision.missed is None
            made, next_at = [*made, *decision.made], decision.next_at
    assert made == list(ticks_between(rule, START, now))


def decided(catch_up: CatchUp, outage: timedelta, *, busy: bool = False) -> TickDecision:
    """Of an hourly schedule, after an outage that begins with a tick."""
    overlap = Overlap.SKIP if busy else Overlap.ALLOW
    tick = datetime(2026, 6, 1, 12, tzinfo=UTC)
    rule = read_rule("0 * * * *", "UTC")
    return decide(rule, TickPolicy(overlap, catch_up), next_at=tick, now=tick + outage, busy=busy)


def hour(number: int) -> datetime:
    return datetime(2026, 6, 1, number, tzinfo=UTC)


def test_a_tick_comes_once_it_is_due() -> None:
    rule = read_rule("0 * * * *", "UTC")
    early = decide(rule, TickPolicy(), next_at=hour(12), now=hour(12) - timedelta(microseconds=1))
    assert early == TickDecision(next_at=hour(12))
    for catch_up in CatchUp:
        assert decided(catch_up, timedelta(0)) == TickDecision(hour(13), made=(hour(12),))


def test_what_an_outage_took_is_made_up_for_as_wished() -> None:
    outage = timedelta(hours=2, minutes=30)
    assert decided(CatchUp.NONE, outage) == TickDecision(hour(15), missed=(hour(12), hour(14)))
    assert decided(CatchUp.ONE, outage) == TickDecision(
        hour(15), made=(hour(14),), missed=(hour(12), hour(13))
    )
    assert decided(CatchUp.ALL, outage) == TickDecision(
        hour(15), made=(hour(12), hour(13), hour(14))
    )


def test_an_outage_that_ends_with_a_tick_has_that_one_on_time() -> None:
    outage = timedelta(hours=2, seconds=LATE_SECONDS)
    assert decided(CatchUp.NONE, outage).made == (hour(14),)
    assert decided(CatchUp.NONE, outage + timedelta(seconds=1)).made == ()


def test_a_tick_is_skipped_while_the_job_before_has_not_ended() -> None:
    assert decided(CatchUp.ONE, timedelta(0), busy=True) == TickDecision(hour(13), skipped=hour(12))
    late = decided(CatchUp.NONE, timedelta(minutes=30), busy=True)
    assert late == TickDecision(hour(13), missed=(hour(12), hour(12)))


def test_no_more_than_the_newest_thousand_are_made_up_for() -> None:
    rule, now = read_rule("* * * * *", "UTC"), hour(12) + timedelta(seconds=30)
    next_at = now - timedelta(days=300, seconds=30)
    decision = decide(rule, TickPolicy(catch_up=CatchUp.ALL), next_at=next_at, now=now)
    oldest = hour(12) - timedelta(minutes=MOST_MADE_UP - 1)
    assert decision.made[0] == oldest
    assert decision.missed == (next_at, oldest - timedelta(minutes=1))
    assert decision.next_at == oldest + timedelta(minutes=len(decision.made))
    assert decision.next_at is not None
    following = decide(rule, TickPolicy(catch_up=CatchUp.ALL), next_at=decision.next_at, now=now)
    assert following.made[0] == decision.next_at and following.missed is None


def test_the_newest_tick_of_a_long_outage_is_found_without_walking_through_it() -> None:
    # Every minute of June, and it is the last of May again.
    rule = read_rule("* * * 6 *", "UTC")
    now = datetime(2036, 5, 31, tzinfo=UTC)
    decision = decide(rule, TickPolicy(), next_at=datetime(2026, 6, 1, tzinfo=UTC), now=now)
    assert decision.made == (datetime(2035, 6, 30, 23, 59, tzinfo=UTC),)
    assert decision.next_at == datetime(2036, 6, 1, tzinfo=UTC)


def test_the_last_tick_of_all_ends_the_schedule() -> None:
    # The 1st or 21st, if it is also the last Monday of its month: there is none.
    last = datetime(2028, 2, 29, tzinfo=UTC)
    never = decide(read_rule("0 0 */20 * 1L", "UTC"), TickPolicy(), next_at=last, now=last)
    assert never == TickDecision(None, made=(last,))


def test_a_rare_tick_is_made_up_for_however_few_came_before_it() -> None:
    # A thousand of them ago there was no calendar.
    for cron in ("0 0 29 2 *", "0 0 29 2 */7", "0 0 1 1 *"):
        rule, policy = read_rule(cron, "UTC"), TickPolicy(catch_up=CatchUp.ALL)
        tick = first_of(rule)
        later = decide(rule, policy, next_at=tick, now=tick + timedelta(hours=17))
        assert later == TickDecision(first_of(rule, tick), made=(tick,))


def test_there_is_no_tick_after_the_last_day_of_all() -> None:
    end = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert next_tick(read_rule("0 0 * * *", "UTC"), end) is None


@given(st.sampled_from(RULES), st.integers(0, 9_000))
@settings(max_examples=30)
def test_dropped_ticks_are_those_that_were_due(rule: Rule, minutes: int) -> None:
    first = first_of(rule)
    now = first + timedelta(minutes=minutes)
    due = [first, *ticks_between(rule, first, now)]
    dropped = drop_due(rule, first, now)
    assert (dropped.first, dropped.last) == (first, due[-1])
    assert dropped.count == min(len(due), MOST_MADE_UP)
