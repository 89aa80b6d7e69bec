"""The hits of a chaos run follow from its seed, and a long run has enough of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loadtest.chaos.plan import FAULTS, FREEZE_SECONDS, RESTARTED, TARGETS, Act, Hit, Orders, plan

ALL = tuple(TARGETS)


def kills(hits: list[Hit]) -> int:
    return sum(hit.act is Act.KILL for hit in hits)


def test_seed_repeats_the_hits_and_another_seed_does_not() -> None:
    assert plan(ALL, 120, seed=7) == plan(ALL, 120, seed=7)
    assert plan(ALL, 120, seed=7) != plan(ALL, 120, seed=8)


@given(seed=st.integers(0, 10**9))
def test_two_minutes_hit_every_kind_of_process(seed: int) -> None:
    hits = plan(ALL, 120, seed)
    assert {hit.target for hit in hits} == set(ALL)
    assert [hit.number for hit in hits] == list(range(1, len(hits) + 1))
    assert kills(hits) >= 8


@given(seed=st.integers(0, 10**9))
def test_an_hour_has_a_thousand_hits_and_every_act_on_every_target(seed: int) -> None:
    hits = plan(ALL, 3600, seed)
    assert len(hits) > 1030 and kills(hits) > 350, "some find nobody there"
    acts = {target: {hit.act for hit in hits if hit.target == target} for target in ALL}
    for target in ALL:
        on_process = {Act.KILL, Act.FREEZE} | ({Act.RESTART} if target in RESTARTED else set())
        assert acts[target] == ({Act.FAULT} if target in FAULTS else on_process)


@given(seed=st.integers(0, 10**9), seconds=st.floats(10, 600))
def test_everything_is_over_when_the_run_ends(seed: int, seconds: float) -> None:
    for hit in plan(ALL, seconds, seed):
        assert 0 <= hit.at_seconds <= seconds and 0 <= hit.choice < 1
        if hit.act is Act.FREEZE:
            assert FREEZE_SECONDS[0] <= hit.seconds <= FREEZE_SECONDS[1]
        elif hit.act is Act.FAULT:
            assert FAULTS[hit.target][0] <= hit.seconds <= FAULTS[hit.target][1] or (
                hit.seconds == max(FREEZE_SECONDS[0], seconds - hit.at_seconds)
            )
        else:
            assert hit.seconds == 0
        assert hit.at_seconds + hit.seconds <= seconds + FREEZE_SECONDS[0]


def test_some_freezes_outlast_every_lease() -> None:
    frozen = [hit.seconds for hit in plan(ALL, 1800, seed=1) if hit.act is Act.FREEZE]
    assert min(frozen) < 3 and max(frozen) > 20


def test_seed_repeats_what_a_client_orders() -> None:
    def stream(seed: int) -> list[str]:
        orders = Orders(0, seed)
        return [str(orders.next(1000.0, ["a", "b"])) for _ in range(200)]

    assert stream(3) == stream(3)
    assert stream(3) != stream(4)


def test_an_order_without_a_key_can_be_told_from_every_other() -> None:
    orders = Orders(1, 5)
    requests = [orders.next(1000.0, ["a"]) for _ in range(3000)]
    loose = [one for one in requests if one.key is None and one.orders]
    tags = Counter(
        order.payload.get("candidate") or order.payload.get("tag")
        for request in loose
        for order in request.orders
        if order
    )
    assert loose and None not in tags and set(tags.values()) == {1}
    keys = [one.key for one in requests if one.key]
    assert len(keys) == len(set(keys))
