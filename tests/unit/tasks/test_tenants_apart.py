"""One tenant alone: what it does decides about its own jobs, not about everybody's."""

from __future__ import annotations

from functools import reduce

from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.retry.circuit import (
    MIN_CALLS,
    PROBES_WANTED,
    Circuit,
    CircuitState,
    Window,
    next_circuit,
    without,
)
from tasks.retry.guards import QUARANTINE_MIN_RUNS, quarantined, quarantined_for_all

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
NONE = Window(0, 0)

windows = st.integers(0, 1000).flatmap(
    lambda total: st.builds(Window, st.just(total), st.integers(0, total))
)
crowds = st.lists(windows, min_size=1, max_size=6)


def together(parts: list[Window]) -> Window:
    return reduce(lambda a, b: Window(a.total + b.total, a.bad + b.bad), parts, NONE)


def failing(parts: list[Window]) -> list[Window]:
    """The parts that the leader knows of: those with failures."""
    return [part for part in parts if part.bad]


def closed(parts: list[Window]) -> CircuitState:
    window = together(parts)
    return next_circuit(Circuit(CLOSED, 0), window, NONE, 1, tenants=failing(parts)).state


@given(crowds, windows)
def test_a_part_is_taken_out_and_nothing_else(others: list[Window], own: Window) -> None:
    assert without(together([*others, own]), own) == together(others)


@given(windows, windows)
def test_a_part_larger_than_the_whole_leaves_nothing_odd(window: Window, own: Window) -> None:
    rest = without(window, own)
    assert 0 <= rest.bad <= rest.total


@given(crowds, windows, st.booleans())
def test_one_tenant_alone_quarantines_no_type_for_others(
    others: list[Window], own: Window, was: bool
) -> None:
    assume(not quarantined(together(others), was))
    everybody = [*others, own]
    assert not quarantined_for_all(together(everybody), failing(everybody), was)


@given(windows, st.booleans())
def test_the_only_tenant_of_a_type_has_its_own_quarantine(own: Window, was: bool) -> None:
    assume(own.bad)
    assert not quarantined_for_all(own, [own], was)


@given(st.lists(st.integers(QUARANTINE_MIN_RUNS, 1000), min_size=2, max_size=6))
def test_a_type_that_fails_for_several_is_quarantined_for_all(runs: list[int]) -> None:
    parts = [Window(total, total) for total in runs]
    assert quarantined_for_all(together(parts), parts, was=False)


@given(crowds, windows)
def test_one_tenant_alone_opens_no_circuit_that_others_use_well(
    others: list[Window], own: Window
) -> None:
    well = together(others)
    assume(well.total and well.bad_share < 0.5)
    assert closed([*others, own]) is CLOSED


@given(windows)
def test_an_outage_that_only_one_active_tenant_sees_opens_the_circuit(own: Window) -> None:
    usual = next_circuit(Circuit(CLOSED, 0), own, NONE, 1).state
    assert closed([own]) is usual
    assert closed([own, NONE]) is usual


@given(st.lists(st.integers(MIN_CALLS, 1000), min_size=1, max_size=6))
def test_an_outage_for_everybody_opens_the_circuit(calls: list[int]) -> None:
    assert closed([Window(total, total) for total in calls]) is OPEN


@given(crowds, windows)
def test_a_refusal_of_everybody_opens_it_whoever_met_it(others: list[Window], own: Window) -> None:
    window = together([*others, own])
    assume(window.bad >= 3 and window.bad_share >= 0.5)
    tenants = failing([*others, own])
    after = next_circuit(Circuit(CLOSED, 0), window, NONE, 1, tenants=tenants, outages=window.bad)
    assert after.state is OPEN


def half_open(parts: list[Window], outages: int = 0, *, others_probe: bool = False) -> CircuitState:
    return next_circuit(
        *(Circuit(HALF_OPEN, 0), NONE, together(parts), 1),
        tenants=failing(parts),
        outages=outages,
        others_probe=others_probe,
    ).state


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), windows)
def test_one_tenant_alone_does_not_keep_a_circuit_from_closing(
    good: list[int], own: Window
) -> None:
    assume(sum(good) >= PROBES_WANTED)
    assert half_open([*(Window(total, 0) for total in good), own]) is CLOSED


def test_a_bad_probe_opens_it_again_unless_others_have_yet_to_probe() -> None:
    assert half_open([Window(1, 1)]) is HALF_OPEN, "others get a chance"
    assert half_open([Window(1, 1), Window(2, 0)]) is HALF_OPEN
    assert half_open([Window(3, 3)]) is OPEN, "nobody else called"
    assert half_open([Window(1, 1), Window(1, 1)]) is OPEN, "for two it fails"
    assert half_open([Window(MIN_CALLS, MIN_CALLS), Window(1, 0)]) is OPEN
    assert half_open([Window(1, 1), Window(2, 0)], outages=1) is OPEN, "our key"
    # Of workers of the previous version, nobody knows whose the failure was.
    assert next_circuit(Circuit(HALF_OPEN, 0), NONE, Window(5, 1), 1).state is OPEN


@given(st.integers(0, PROBES_WANTED - 1), windows, st.booleans())
def test_bad_probes_of_one_tenant_wait_for_those_of_others(
    good: int, own: Window, refused: bool
) -> None:
    assume(own.bad)
    parts = [Window(good, 0), own]
    assert half_open(parts, int(refused), others_probe=True) is (OPEN if refused else HALF_OPEN)


@given(st.lists(windows.filter(lambda part: part.bad > 0), min_size=2, max_size=6), st.booleans())
def test_bad_probes_of_two_tenants_open_it_whoever_probes(
    parts: list[Window], others_probe: bool
) -> None:
    assert half_open(parts, others_probe=others_probe) is OPEN


@given(st.integers(PROBES_WANTED, 1000))
def test_bad_probes_of_the_only_tenant_open_it(bad: int) -> None:
    assert half_open([Window(bad, bad)]) is OPEN
