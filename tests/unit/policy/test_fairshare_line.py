"""The line from turn to turn: shares, credit, debts, restarts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.policy.fairshare import Entitlement, FairLine, TenantClaim, Tier, entitlement_of

SECONDS = 10.0
FREE = TenantClaim(entitlement_of(Tier.FREE), free=True)


def standing(weight: float = 10.0, cap: int | None = None) -> TenantClaim:
    return TenantClaim(Entitlement(weight), cap=cap)


def serve(line: FairLine, turns: int, room: int = 1, **how: object) -> dict[int, int]:
    """Dispatch and end, turn after turn; jobs of each tenant."""
    got: dict[int, int] = {}
    for _ in range(turns):
        grants = line.allocate(room, slots=room, **how)  # type: ignore[arg-type]
        for grant in grants:
            line.dispatched(grant.tenant_id, [SECONDS] * grant.jobs)
            got[grant.tenant_id] = got.get(grant.tenant_id, 0) + grant.jobs
        for grant in grants:
            line.reconcile(grant.tenant_id, used=SECONDS * grant.jobs, pending=0.0, in_flight=0)
    return got


def line_with(weights: Mapping[int, float], lane: str = "") -> FairLine:
    line = FairLine(SECONDS)
    for number, weight in weights.items():
        line.know(number, standing(weight))
        line.arrive(number, lane)
    return line


@settings(max_examples=40)
@given(st.dictionaries(st.integers(1, 99), st.integers(1, 20), min_size=1, max_size=6))
def test_nobody_starves_and_jobs_come_by_weight(weights: dict[int, int]) -> None:
    got = serve(line_with(weights), 3 * sum(weights.values()))
    for number, weight in weights.items():
        assert abs(got[number] - 3 * weight) <= 1


def test_a_newcomer_gets_its_share_and_no_burst() -> None:
    line = line_with({1: 10, 2: 10})
    serve(line, 500)
    line.know(3, standing())
    line.arrive(3, "")
    assert serve(line, 3)[3] == 1
    assert 99 <= serve(line, 300)[3] <= 101


def test_a_thousand_free_accounts_have_one_first_pick() -> None:
    line = line_with({1: 10, 2: 10})
    serve(line, 100)
    for number in range(1000, 2000):
        line.know(number, FREE)
        line.arrive(number, "")
    got = serve(line, 420, most_free=1)
    assert sum(jobs for number, jobs in got.items() if number >= 1000) in (20, 21)


def test_free_accounts_take_turns() -> None:
    line = FairLine(SECONDS)
    for number in range(1, 11):
        line.know(number, FREE)
        line.arrive(number, "")
    assert set(serve(line, 30, most_free=1).values()) == {3}


def test_only_free_accounts_still_never_fill_more_than_their_slice() -> None:
    line = FairLine(SECONDS)
    for number in range(1, 11):
        line.know(number, FREE)
        line.arrive(number, "")
    assert sum(g.jobs for g in line.allocate(50, slots=100, most_free=5)) == 5


def test_whoever_used_an_idle_pool_alone_owes_nothing_later() -> None:
    line = line_with({1: 10})
    for _ in range(100):
        serve(line, 1, room=4)
        line.empty(1, "")
        line.rest()
        line.arrive(1, "")
    line.know(2, standing())
    line.arrive(2, "")
    got = serve(line, 20)
    assert got == {1: 10, 2: 10}


def test_a_debt_has_an_end() -> None:
    line = line_with({1: 10, 2: 10})
    line.allocate(1, slots=4)
    line.dispatched(1, [SECONDS])
    line.reconcile(1, used=1e9, pending=0.0, in_flight=0)
    jobs = 3600 * 4 / SECONDS  # all that the pool can end in an hour
    assert 1 not in serve(line, 10)
    assert 1 in serve(line, int(jobs))


def test_a_job_that_runs_on_costs_more_than_its_estimate() -> None:
    line = line_with({1: 10, 2: 10})
    line.allocate(2, slots=2)
    for number in (1, 2):
        line.dispatched(number, [SECONDS])
    line.reconcile(1, used=0.0, pending=100.0, in_flight=1)
    assert line.account(1).pass_ == pytest.approx(10.0)
    assert [grant.tenant_id for grant in line.allocate(1, slots=2)] == [2]


def test_what_could_not_be_published_was_never_charged() -> None:
    line = line_with({1: 10, 2: 10})
    line.allocate(1, slots=2)
    before = line.account(1)
    line.dispatched(1, [SECONDS, SECONDS])
    line.returned(1, [SECONDS, SECONDS])
    assert line.account(1) == before
    assert serve(line, 10) == {1: 5, 2: 5}


def test_nobody_saves_up_credit_behind_its_cap() -> None:
    line = line_with({1: 10, 2: 10})
    line.know(1, standing(cap=1))
    line.set_in_flight(1, 1)
    assert line.at_cap() == [1]
    serve(line, 100)
    line.set_in_flight(1, 0)
    assert line.at_cap() == []
    assert serve(line, 10)[1] <= 6


def test_nobody_saves_up_credit_behind_a_held_lane() -> None:
    line = line_with({2: 10})
    for number in (1, 3):
        line.know(number, standing())
        line.arrive(number, "claude")
    serve(line, 100, held={"claude": 0})
    assert line.waiting() and line.waiting({"claude"}) and not line.waiting({"", "claude"})
    got = serve(line, 30, held={"claude": 5})
    assert [got[number] for number in (1, 2, 3)] == pytest.approx([10, 10, 10], abs=1)


def test_weights_count_inside_a_lane_that_opens_for_a_job_at_a_time() -> None:
    line = line_with({1: 10, 2: 30, 3: 10}, lane="claude")
    line.know(4, standing(1000))
    line.arrive(4, "")
    got = serve(line, 50, room=100, held={"claude": 1})
    assert [got[number] for number in (1, 2, 3)] == pytest.approx([10, 30, 10], abs=1)


def test_nobody_saves_up_credit_in_a_lane_that_opens_for_a_job_at_a_time() -> None:
    line = line_with({1: 10}, lane="claude")
    line.know(2, standing())
    line.arrive(2, "")
    serve(line, 50, room=20, held={"claude": 1})
    assert serve(line, 100, room=2)[1] <= 120  # a round of 20 more than half; 900 were held up


def test_own_experience_corrects_the_estimate_of_a_type() -> None:
    line = line_with({1: 10, 2: 10})
    for _ in range(30):  # the type says 10 s of both; they take 1 s and 100 s
        for grant in line.allocate(2, slots=2):
            line.dispatched(grant.tenant_id, [SECONDS] * grant.jobs)
            used = grant.jobs * (1.0 if grant.tenant_id == 1 else 100.0)
            line.reconcile(grant.tenant_id, used=used, pending=0.0, in_flight=0)
    line.rest()
    for number in (1, 2):
        line.dispatched(number, [SECONDS])
    assert line.account(1).pending < 2.0
    assert line.account(2).pending > 30.0


def test_a_changed_standing_keeps_what_was_served() -> None:
    line = line_with({1: 10, 2: 10})
    serve(line, 100)
    line.know(1, standing(30))
    got = serve(line, 100)
    assert got[1] == pytest.approx(75, abs=2)


def test_a_tenant_that_becomes_free_takes_its_jobs_in_flight_along() -> None:
    line = line_with({1: 10, 2: 10})
    line.dispatched(1, [SECONDS])
    line.know(1, FREE)
    assert [g.tenant_id for g in line.allocate(5, slots=20, most_free=1)] == [2]
    line.know(1, standing())
    assert {g.tenant_id for g in line.allocate(5, slots=20, most_free=1)} == {1, 2}


@settings(max_examples=30)
@given(st.integers(0, 200), st.lists(st.sampled_from([1, 2, 3, 10, 11, 12]), max_size=4))
def test_a_restored_line_goes_on_as_if_nothing_had_been(turns: int, late: list[int]) -> None:
    line = line_with({1: 10, 2: 20, 3: 30})
    for number in (10, 11, 12):
        line.know(number, FREE)
        line.arrive(number, "")
    serve(line, turns, room=3, most_free=1)
    for number in late:
        line.dispatched(number, [SECONDS])
    restored = FairLine(SECONDS, line.virtual_time)
    for number in (12, 3, 11, 2, 10, 1):
        account = line.account(number)
        now = FREE if number >= 10 else standing(10.0 * number)
        restored.know(number, now, served=account.served)
        restored.arrive(number, "")
        restored.reconcile(number, used=0.0, pending=account.pending, in_flight=account.in_flight)
    after, same = serve(restored, 100, room=3), serve(line, 100, room=3)
    assert all(abs(after.get(number, 0) - same.get(number, 0)) <= 2 for number in same)


def test_a_free_newcomer_is_not_behind_the_largest_debtor() -> None:
    """The pool rests while free accounts wait for their slice; they do not."""
    line, free = FairLine(1.0), TenantClaim(entitlement_of(Tier.FREE), free=True)

    def turn(used: Mapping[int, float]) -> list[int]:
        grants = line.allocate(20, slots=10, most_free=1)
        for grant in grants:
            line.dispatched(grant.tenant_id, [1.0] * grant.jobs)
        line.allocate(19, slots=10, most_free=1)
        assert line.free_full and not line.waiting()
        line.rest()
        for grant in grants:
            seconds = used.get(grant.tenant_id, 1.0)
            line.reconcile(grant.tenant_id, used=seconds, pending=0.0, in_flight=0)
        return [grant.tenant_id for grant in grants]

    for number in (1, 2):
        line.know(number, free)
        line.arrive(number, "")
    turn({1: 600.0})
    for _ in range(5):
        turn({})
    line.know(3, free)
    line.arrive(3, "")
    served = [number for _ in range(60) for number in turn({})]
    assert served.count(3) >= 25 and served.count(1) == 0


def test_a_slice_takes_only_its_own_and_obeys_caps_and_held_lanes() -> None:
    line = FairLine(1.0)
    line.know(1, standing(cap=5))
    line.know(2, standing())
    for lane in ("", "claude"):
        line.arrive(1, lane)
    line.arrive(2, "")
    (grant,) = line.allocate_slice(10, 1, {"claude": 2})
    assert (grant.tenant_id, grant.jobs, grant.lanes) == (1, 5, {"": 5, "claude": 2})
    line.set_in_flight(1, 5)
    assert line.allocate_slice(10, 1) == []
    assert line.allocate_slice(10, 7) == [], "nobody knows him"
    assert line.virtual_time == 0.0
