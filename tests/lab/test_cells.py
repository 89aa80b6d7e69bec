"""The experiments with cells in miniature: they run, and nothing is lost or doubled.

Seconds of load on a machine with other things to do say nothing about speed, so of all bars only
those are held that allow nothing at all, and those that need everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from loadtest.cells.__main__ import NAMES, run
from loadtest.lab.experiment import Size
from tests.acceptance.conftest import need_rabbitmq

#: Three PostgreSQLs and RabbitMQs start, which on a busy machine takes its time.
pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]

#: Bars about speed and shares.
LEFT_OUT = ("p99", "processor time", "slowest", "within", "part of a cell", "jobs in the shortest")


@pytest.mark.parametrize("name", NAMES)
def test_experiment_runs_and_keeps_every_promise(name: str, tmp_path: Path) -> None:
    need_rabbitmq()
    report = run(name, Size.MINI, tmp_path, Console(quiet=True))
    assert report.findings and report.tables
    missed = [
        bar.cells()
        for bar in report.bars
        if not bar.passed and not any(words in bar.claim for words in LEFT_OUT)
    ]
    assert not missed, (missed, report.notes)
    for picture in report.pictures:
        assert (tmp_path / picture.file).stat().st_size > 0
