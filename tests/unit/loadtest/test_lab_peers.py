"""The comparison with the peers: what its figures say, without any service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.baselines import witness
from loadtest.baselines.witness import Line, read_lines
from loadtest.figures import Sample
from loadtest.lab.experiment import Size
from loadtest.lab.peers.contender import ends_in
from loadtest.lab.peers.costs import Cost
from loadtest.lab.peers.judge import colour, draw, judge, losses, paler
from loadtest.lab.peers.killing import Killed, Survival, survival
from loadtest.lab.peers.tables import GUARANTEES, Measured
from loadtest.lab.peers.turns import middle_rate, moment_of, whole_rate

NAMES = ["Fairline", "plain Celery", "Dramatiq", "Procrastinate"]


@st.composite
def curves(draw_value: st.DrawFn) -> list[tuple[float, int]]:
    """Looks at a number that grows, from nothing to something."""
    steps = draw_value(
        st.lists(
            st.tuples(st.floats(0.01, 5.0), st.integers(0, 500)), min_size=1, max_size=30
        ).filter(lambda found: sum(done for _, done in found) > 0)
    )
    curve = [(0.0, 0)]
    for seconds, done in steps:
        curve.append((curve[-1][0] + seconds, curve[-1][1] + done))
    return curve


def test_rate_of_a_straight_line_is_its_slope() -> None:
    curve = [(0.1 * step, 20 * step) for step in range(51)]
    assert whole_rate(curve) == pytest.approx(200.0)
    assert middle_rate(curve) == pytest.approx(200.0)


def test_a_slow_start_and_a_thin_end_do_not_count_in_the_middle_rate() -> None:
    curve = [(0.0, 0), (10.0, 100), (11.0, 900), (30.0, 1000)]
    assert middle_rate(curve) == pytest.approx(800.0)
    assert whole_rate(curve) == pytest.approx(1000 / 30)


def test_looks_after_the_last_job_do_not_slow_the_rate_down() -> None:
    assert whole_rate([(0.0, 0), (1.0, 100), (2.0, 100), (9.0, 100)]) == pytest.approx(100.0)


@given(curves())
def test_moments_are_in_order_and_inside_the_curve(curve: list[tuple[float, int]]) -> None:
    moments = [moment_of(curve, share / 10) for share in range(11)]
    assert moments == sorted(moments)
    assert moments[0] >= 0.0 and moments[-1] <= curve[-1][0]


@given(curves())
def test_rates_are_never_negative_and_the_whole_one_covers_all_jobs(
    curve: list[tuple[float, int]],
) -> None:
    assert middle_rate(curve) >= 0.0
    assert whole_rate(curve) >= curve[-1][1] / curve[-1][0] - 1e-6


def test_a_job_that_never_ended_is_lost_and_one_that_ended_twice_is_repeated() -> None:
    lines = [
        *(Line("start", 1, 1.0), Line("end", 1, 1.1)),
        *(Line("start", 2, 1.0), Line("start", 2, 5.0), Line("end", 2, 5.1)),
        *(Line("start", 3, 1.0), Line("end", 3, 1.9), Line("end", 3, 6.0)),
        Line("start", 4, 1.5),
        Line("end", 99, 1.5),
    ]
    found = survival(range(1, 6), lines, killed_at=2.0)
    assert found == Survival(promised=5, done=3, repeated=1, interrupted=2)
    assert found.lost == 2


@given(
    st.lists(
        st.builds(
            Line, st.sampled_from(["start", "end"]), st.integers(0, 20), st.floats(0.0, 10.0)
        ),
        max_size=60,
    )
)
def test_done_and_lost_add_up_to_what_was_promised(lines: list[Line]) -> None:
    found = survival(range(15), lines, killed_at=5.0)
    assert found.done + found.lost == found.promised == 15
    assert found.repeated <= found.done


def test_the_witness_reads_what_tasks_told_and_leaves_half_a_line_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "witness"
    monkeypatch.setenv(witness.VARIABLE, str(file))
    monkeypatch.setattr(witness, "_file", None)
    count = ends_in(file)
    assert count() == 0
    witness.run({"n": 7, "ms": 0})
    assert [(line.what, line.number) for line in read_lines(file)] == [("start", 7), ("end", 7)]
    assert count() == 1
    with file.open("ab") as half:
        half.write(b"end 8 17000")
    assert len(list(read_lines(file))) == 2 and count() == 1
    with file.open("ab") as rest:
        rest.write(b"00.5\n")
    assert count() == 2
    assert ends_in(file)() == 0


def measured() -> Measured:
    """A run in which Fairline does as well as it must, and is behind where it may be."""
    found = Measured(names=NAMES, tuning=dict.fromkeys(NAMES, "as it comes"), waiting=10_000)
    rates = {
        "accept: Fairline @few": 2300,
        "accept: plain Celery @few": 400,
        "accept: Dramatiq @few": 1500,
        "accept: Procrastinate @few": 900,
        "accept: Fairline @many": 2400,
        "empty Flask route @few": 3000,
        "empty Flask route @many": 3000,
        "poll: pending @few": 2000,
        "poll: terminal @few": 2500,
        "poll: 304 @few": 2600,
        "drain: Fairline": 4000,
        "drain: plain Celery": 800,
        "drain: Dramatiq": 4500,
        "drain: Procrastinate": 300,
        "no-op end to end: Fairline": 4200,
        "no-op end to end: plain Celery": 700,
        "no-op end to end: Dramatiq": 3000,
        "no-op end to end: Procrastinate": 250,
        "10-ms end to end: Fairline": 2000,
        "10-ms end to end: plain Celery": 600,
        "10-ms end to end: Dramatiq": 1200,
        "10-ms end to end: Procrastinate": 240,
    }
    found.samples = [Sample(name, float(rate), 10.0, 20.0) for name, rate in rates.items()]
    found.starts = {"Fairline": [9.0] * 10, **{name: [6.0] * 10 for name in NAMES[1:]}}
    found.memory = {name: {"API": 100.0, "workers": 60.0} for name in NAMES}
    found.memory["Fairline"]["scheduler"] = 60.0
    found.killed = [Killed(name, Survival(500, 500, 3, 20), 6.0) for name in NAMES]
    found.costs = [
        Cost(name, 50, 100.0, 100.0, {"workers": 0.1 * (spread + place)}, 900.0)
        for place, name in enumerate(NAMES)
        for spread in (3, 1, 2)
    ]
    found.idle_ms, found.lined_ms = [5.0] * 100, [5.5] * 100
    return found


def test_a_run_that_reaches_every_bar_passes() -> None:
    report = judge(measured(), Size.FULL)
    assert report.passed, [bar for bar in report.bars if not bar.passed]
    claims = {bar.claim: bar.measured for bar in report.bars}
    assert claims["accept rate at 64 connections, of plain Celery's"] == pytest.approx(5.75)
    assert claims["no-op jobs, HTTP batch to done, of the best peer's"] == pytest.approx(1.4)
    assert claims["submit to start when idle, p50, beyond plain Celery's"] == pytest.approx(3.0)
    assert claims["API p95 with 10,000 jobs waiting, of the idle one"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("accept: Fairline @few", 2100),
        ("accept: Fairline @many", 2200),
        ("poll: 304 @few", 2300),
        ("no-op end to end: Dramatiq", 4300),
        ("no-op end to end: plain Celery", 900),
    ],
)
def test_one_figure_too_low_or_one_peer_too_fast_fails_the_run(name: str, rate: float) -> None:
    found = measured()
    found.samples = [replace(s, rate=rate) if s.name == name else s for s in found.samples]
    assert not judge(found, Size.FULL).passed


def test_a_single_lost_job_of_fairline_fails_even_a_miniature() -> None:
    found = measured()
    found.killed[0] = Killed("Fairline", Survival(500, 499, 0, 20), 6.0)
    assert not judge(found, Size.MINI).passed


def test_what_a_peer_loses_is_told_but_does_not_fail_the_run() -> None:
    found = measured()
    found.killed.append(Killed("plain Celery, its default", Survival(500, 490, 0, 10), 3.0))
    report = judge(found, Size.FULL)
    assert report.passed
    assert any("plain Celery, its default 10 of 500" in sentence for sentence in report.findings)


def test_every_figure_in_which_a_peer_is_ahead_is_named() -> None:
    behind = " ".join(losses(measured()))
    assert "from a full queue (Dramatiq 4,500/s against 4,000/s)" in behind
    assert "submit to start" in behind and "memory" in behind
    assert "submissions" not in behind and "10-ms" not in behind


def test_the_median_of_what_a_job_costs_is_in_the_summary() -> None:
    report = judge(measured(), Size.FULL)
    expected = "takes 2.00 ms of processor time (plain Celery 3.00, Dramatiq 4.00,"
    assert any(expected in sentence for sentence in report.findings)
    [costs] = [table for table in report.tables if "Processor" in table.title]
    assert [row[0] for row in costs.rows] == NAMES and costs.rows[0][-2:] == ("2.00", "900")


def test_percentiles_do_not_depend_on_the_order() -> None:
    found = Measured(starts={"one": [3.0, 1.0, 2.0], "another": [1.0, 2.0, 3.0]})
    for share in (0.5, 0.95, 0.99):
        assert found.start_ms(share)["one"] == found.start_ms(share)["another"]


def test_every_guarantee_is_stated_for_every_contender() -> None:
    assert list(GUARANTEES.headings[1:]) == NAMES
    assert all(len(row) == 5 and all(row) for row in GUARANTEES.rows)


def test_a_variant_has_the_colour_of_its_library_and_paler_ones_tend_to_white() -> None:
    assert colour("Dramatiq, confirmed") == colour("Dramatiq") != colour("plain Celery")
    assert paler("#000000", 1.0) == (0.0, 0.0, 0.0)
    assert paler("#123456", 0.0) == (1.0, 1.0, 1.0)


def test_the_pictures_bear_a_variant_that_was_not_measured_in_every_way(tmp_path: Path) -> None:
    found = measured()
    variant = "Dramatiq, confirmed"
    found.names = [*NAMES, variant]
    found.samples += [
        Sample(f"{kind}: {variant}{suffix}", 1000.0)
        for kind, suffix in (("accept", " @few"), ("no-op end to end", ""), ("drain", ""))
    ]
    found.starts[variant] = [7.0]
    found.costs.append(Cost(variant, 50, 100.0, 100.0, {"workers": 0.3}))
    found.memory[variant] = {"API": 80.0, "workers": 40.0}
    assert judge(found, Size.FULL).passed
    for drawn in draw(found, tmp_path):
        assert (tmp_path / drawn.file).read_bytes().startswith(b"\x89PNG")
