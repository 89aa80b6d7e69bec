"""A dependency's circuit: when it opens, asks and closes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.retry.circuit import (
    MIN_CALLS,
    MIN_OUTAGES,
    OPEN_SECONDS,
    PROBES,
    PROBES_WANTED,
    Circuit,
    CircuitState,
    Window,
    next_circuit,
)

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
NONE = Window(0, 0)

windows = st.integers(0, 1000).flatmap(
    lambda total: st.builds(Window, st.just(total), st.integers(0, total))
)
times = st.integers(0, 10**9).map(float)
circuits = st.builds(Circuit, st.sampled_from(CircuitState), times)
LEGAL = {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, OPEN), (HALF_OPEN, CLOSED)}


@given(circuits, windows, windows, times)
def test_a_circuit_stays_itself_or_makes_one_legal_move_now(
    circuit: Circuit, window: Window, probes: Window, now: float
) -> None:
    after = next_circuit(circuit, window, probes, now)
    assert after == circuit or ((circuit.state, after.state) in LEGAL and after.changed_at == now)


@given(windows, windows, times)
def test_a_closed_circuit_opens_exactly_when_half_of_enough_calls_fail(
    window: Window, probes: Window, now: float
) -> None:
    after = next_circuit(Circuit(CLOSED, 0), window, probes, now)
    enough, half = window.total >= MIN_CALLS, 2 * window.bad >= window.total
    assert (after.state is OPEN) == (enough and half)


@given(windows, st.integers(0, 1000), times)
def test_refusals_that_concern_all_open_it_earlier_and_never_keep_it_closed(
    window: Window, outages: int, now: float
) -> None:
    outages = min(outages, window.bad)
    usual = next_circuit(Circuit(CLOSED, 0), window, NONE, now).state
    after = next_circuit(Circuit(CLOSED, 0), window, NONE, now, outages=outages).state
    if usual is OPEN or (outages >= MIN_OUTAGES and 2 * outages >= window.total):
        assert after is OPEN
    else:
        assert after is CLOSED


@pytest.mark.parametrize(
    ("window", "state"),
    [
        (NONE, CLOSED),
        (Window(9, 9), CLOSED),
        (Window(10, 4), CLOSED),
        (Window(10, 5), OPEN),
        (Window(1001, 500), CLOSED),
        (Window(1000, 500), OPEN),
    ],
)
def test_the_border_of_opening(window: Window, state: CircuitState) -> None:
    assert next_circuit(Circuit(CLOSED, 0), window, NONE, 1).state is state


@given(windows, windows, st.integers(-1000, 1000))
def test_an_open_circuit_asks_after_a_minute_whatever_is_counted(
    window: Window, probes: Window, seconds: int
) -> None:
    after = next_circuit(Circuit(OPEN, 5000), window, probes, 5000 + seconds)
    assert after.state is (HALF_OPEN if seconds >= OPEN_SECONDS else OPEN)


@given(windows, times)
def test_a_probe_without_an_answer_decides_nothing(window: Window, now: float) -> None:
    circuit = Circuit(HALF_OPEN, 0)
    assert next_circuit(circuit, window, NONE, now) == circuit


@given(windows, windows, times)
def test_one_bad_probe_opens_and_only_good_ones_close(
    window: Window, probes: Window, now: float
) -> None:
    after = next_circuit(Circuit(HALF_OPEN, 0), window, probes, now).state
    assert (after is OPEN) == (probes.bad > 0)
    assert (after is CLOSED) == (probes.bad == 0 and probes.total >= PROBES_WANTED)


def test_the_probes_in_flight_suffice_to_close() -> None:
    assert PROBES >= PROBES_WANTED


@given(st.floats(0.05, 30), st.integers(1, 200))
def test_a_dependency_that_stays_down_is_asked_about_once_a_minute(
    turn_seconds: float, turns: int
) -> None:
    circuit, asked = Circuit(OPEN, 0), 0
    for turn in range(turns):
        down = circuit.state is HALF_OPEN
        asked += down
        circuit = next_circuit(circuit, NONE, Window(int(down), int(down)), turn * turn_seconds)
    assert asked <= turns * turn_seconds / OPEN_SECONDS


def test_a_dependency_that_comes_back_is_called_again_and_its_past_forgotten() -> None:
    closed = Circuit(CLOSED, 0)
    opened = next_circuit(closed, Window(20, 20), NONE, 100)
    assert next_circuit(opened, NONE, NONE, 159) == opened
    asking = next_circuit(opened, NONE, NONE, 160)
    assert asking == Circuit(HALF_OPEN, 160)
    assert next_circuit(asking, NONE, Window(2, 0), 161) == asking
    again = next_circuit(asking, NONE, Window(3, 0), 162)
    assert again == Circuit(CLOSED, 162)
    assert next_circuit(again, NONE, NONE, 163) == again
