"""The estimate of the database's clock: as good as the answers allow, and never backwards."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from models.jobs.ids import new_id
from models.store.clock import (
    MOST_HELD_NS,
    STEP_NS,
    DatabaseClock,
    corrected,
    next_time,
)

TIMES = st.integers(0, 2**62)
#: How long a statement was on its way, there and back.
DELAYS = st.tuples(st.integers(0, 10**10), st.integers(0, 10**10))
HOUR_NS = 3_600 * 10**9


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), TIMES, DELAYS)
def test_an_answer_bounds_the_error_and_never_adds_to_it(
    offset: int, true_offset: int, sent: int, delays: tuple[int, int]
) -> None:
    there, back = delays
    after = corrected(offset, sent, sent + there + true_offset, sent + there + back)
    error = abs(after - true_offset)
    assert error <= there + back
    assert error <= max(abs(offset - true_offset), (there + back) // 2 + 1)
    assert corrected(after, sent, sent + there + true_offset, sent + there + back) == after


@given(st.lists(st.integers(0, MOST_HELD_NS // 2 - 2 * STEP_NS), min_size=2, max_size=50))
def test_times_rise_while_the_clock_is_corrected_a_little(readings: list[int]) -> None:
    latest, given_out = 0, []
    for now in readings:
        latest = next_time(latest, now)
        given_out.append(latest)
    assert given_out == sorted(given_out)
    assert len(set(given_out)) == len(given_out)


@given(TIMES, TIMES)
def test_a_time_is_the_clock_s_or_just_above_the_one_before(latest: int, now: int) -> None:
    assert next_time(latest, now) in (now, latest + STEP_NS)
    if now > latest or latest - now >= MOST_HELD_NS:
        assert next_time(latest, now) == now


def test_ids_of_machines_whose_clocks_differ_by_hours_sort_as_they_were_made() -> None:
    server = SimpleNamespace(now=1_800_000_000 * 10**9)
    clocks = []
    for shift in (HOUR_NS, -HOUR_NS, 0):
        clock = DatabaseClock(lambda shift=shift: server.now + shift)  # type: ignore[misc]
        sent = clock.local_ns()
        server.now += 2_000_000  # an answer takes 2 ms
        clock.learn(sent, (server.now - 1_000_000) // 1000, clock.local_ns())
        clocks.append(clock)
    ids = []
    for turn in range(60):
        server.now += 3_000_000
        ids.append(new_id(clocks[turn % len(clocks)]))
    assert ids == sorted(ids)
    assert abs(clocks[0].now().timestamp() - server.now / 1e9) < 0.002
