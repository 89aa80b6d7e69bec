"""The load lab's common parts: gauges each second, rows as CSV, the top report, the options."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.lab import __main__ as lab
from loadtest.lab import experiment as lab_experiment
from loadtest.lab.__main__ import write_summary
from loadtest.lab.experiment import NAMES, Row, Sampler, Size, Speed, experiment, write_csv
from loadtest.report import Bar, Picture, Report

PERIOD = 0.05


class Gauge:
    """A gauge that counts down; ``enough`` is set after so many readings."""

    def __init__(self, reads: int, failing: int = -1, slow: int = -1) -> None:
        self.enough = threading.Event()
        self._wanted = reads
        self._failing = failing
        self._slow = slow
        self._reads = 0

    def __call__(self) -> dict[str, float]:
        number = self._reads
        self._reads += 1
        if self._reads > self._wanted:
            self.enough.set()
        if number == self._failing:
            raise OSError("the server is being restarted")
        if number == self._slow:
            time.sleep(3.5 * PERIOD)
        return {"waiting": float(10 - number)}


@pytest.fixture(autouse=True)
def _short_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_experiment, "PERIOD_SECONDS", PERIOD)


def watch(gauge: Gauge) -> tuple[Sampler, list[Row], list[str]]:
    rows: list[Row] = [{"step": "earlier"}]
    shown: list[str] = []
    with Sampler("6/s", gauge, shown.append, rows) as sampler:
        assert gauge.enough.wait(10)
    return sampler, rows, shown


def test_a_step_is_looked_at_by_the_clock_and_its_rows_join_the_others() -> None:
    began = time.time()
    sampler, rows, shown = watch(Gauge(reads=5))
    assert rows == [{"step": "earlier"}, *sampler.rows]
    assert [row["step"] for row in sampler.rows] == ["6/s"] * len(sampler.rows)
    for row in sampler.rows:
        assert float(row["at"]) >= began + float(row["second"]) * PERIOD - 0.001
    assert shown[0] == "waiting 10"
    assert sampler.most("waiting") == 10.0
    assert sampler.most("unknown") == 0.0


def test_a_second_that_cannot_be_read_is_left_out() -> None:
    sampler, _, _ = watch(Gauge(reads=4, failing=1))
    assert sampler.missed == 1
    assert [row["waiting"] for row in sampler.rows][:2] == [10.0, 8.0]


def test_a_look_that_takes_long_leaves_seconds_out_and_does_not_make_later_ones_late() -> None:
    sampler, _, _ = watch(Gauge(reads=4, slow=1))
    seconds = [int(row["second"]) for row in sampler.rows]
    assert seconds == sorted(set(seconds))
    assert seconds[2] >= seconds[1] + 3, "the seconds of the long look are missing"


def test_a_speed_is_what_a_counter_gained_since_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter((10.0, 12.0, 13.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    speed = Speed()
    assert [speed(100), speed(110), speed(110)] == [0.0, 5.0, 0.0]


def test_rows_have_the_columns_of_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "new" / "seconds.csv"
    write_csv(file, [{"step": "a", "waiting": 1}, {"step": "b", "cores": 0.5}])
    with file.open(newline="") as opened:
        assert list(csv.DictReader(opened)) == [
            {"step": "a", "waiting": "1", "cores": ""},
            {"step": "b", "waiting": "", "cores": "0.5"},
        ]


def test_the_top_report_says_so_if_nothing_was_run(tmp_path: Path) -> None:
    page = write_summary(tmp_path / "results").read_text()
    assert "Nothing has been run yet" in page
    assert "bars reached" not in page


def test_the_top_report_shows_what_was_run_in_the_order_of_the_catalogue(tmp_path: Path) -> None:
    for name in ("scaling", "knee"):
        report = Report(
            name,
            f"About {name}",
            findings=[f"{name} went well."],
            pictures=[Picture("first.png", "what is seen"), Picture("second.png", "more")],
            bars=[Bar("kept", 2.0, ">=", 1.0), Bar("missed", 2.0, "<=", 1.0)],
            data={"question": f"Is {name} well?", "size": "full" if name == "knee" else "quick"},
        )
        report.write(tmp_path / name)
    page = write_summary(tmp_path).read_text()
    assert "Nothing has been run yet" not in page
    assert page.index("About knee") < page.index("About scaling")
    assert "[About knee](knee/report.md)" in page
    assert "Is knee well?" in page and "knee went well." in page
    assert "![what is seen](knee/first.png)" in page and "second.png" not in page
    assert page.count("**1 of 2 bars reached**") == 2
    assert page.count("quick run") == 1
    assert page.count("| FAIL |") == 2


def test_a_report_leaves_findings_pictures_and_bars_for_machines(tmp_path: Path) -> None:
    report = Report("knee", "The knee", findings=["It is there."], data={"plateau": 6.6})
    report.bars.append(Bar("kept", 2.0, ">=", 1.0))
    report.write(tmp_path)
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["findings"] == ["It is there."]
    assert document["bars"][0]["passed"] is True
    assert document["plateau"] == 6.6


def test_every_experiment_asks_something_and_all_take_a_quarter_of_an_hour_if_quick() -> None:
    chosen = [experiment(name) for name in NAMES]
    assert all(each.TITLE and each.QUESTION.endswith("?") for each in chosen)
    assert sum(each.seconds(Size.QUICK) for each in chosen) <= 900
    for each in chosen:
        assert each.seconds(Size.MINI) < each.seconds(Size.QUICK) < each.seconds(Size.FULL)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_shows_its_step_and_in_a_terminal_the_figures_of_the_second(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with lab.RunProgress(console, "The knee", 90.0) as progress:
        progress.step("6/s")
        progress.figures("waiting 3")
        progress.refresh()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "about 1.5 min" in shown and "6/s" in shown
    assert ("waiting 3" in shown) == terminal


def test_an_experiment_that_does_not_exist_is_named_with_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        lab.main(["knee", "elbow"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no experiment named elbow" in said
    assert all(name in said for name in NAMES)


@pytest.mark.parametrize("given", [["--minutes", "120"], ["--minutes", "0", "soak"]])
def test_only_a_soak_has_a_length_of_its_own(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        lab.main(given)
    assert ended.value.code == 2
    assert "--minutes N, above 0, is for soak alone" in capsys.readouterr().err
    assert lab.options(["--minutes", "120", "soak"]).minutes == 120


def test_what_there_is_can_be_listed_without_running_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert lab.main(["--list", "--quick", "knee", "scaling"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["knee", "scaling"]
    assert all(" min  " in line and line.endswith("?") for line in said)
