"""Rolling restarts: whose turn it is, and what the report says. The processes are not real here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest import restarts
from loadtest.report import Screen
from loadtest.upgrade.clients import Balancer, Clients
from models.pools import POOLS


class Processes:
    """Notes what is done to a deployment, and whether clients submit meanwhile."""

    def __init__(self) -> None:
        self.workers = [f"worker-{pool}-{number}" for number in (1, 2) for pool in POOLS]
        self.names = ["scheduler-1", *self.workers, "api-1"]
        self.replaced: list[str] = []

    def migrate(self, root: Path, *arguments: str) -> None:
        assert not self.replaced

    def replace(self, name: str, root: Path) -> None:
        self.replaced.append(name)


class Submissions(Clients):
    def _submit(self, number: int) -> None:
        self.accepted[f"{number}"] = f"id-{number}"


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch) -> Clients:
    monkeypatch.setattr(restarts, "STEADY_SECONDS", 0.05)
    return Submissions(Balancer([]), per_second=100.0)


def test_every_worker_has_its_turn_green_ones_and_prefork_ones(submissions: Clients) -> None:
    processes: Any = Processes()
    with Screen(Console(quiet=True)) as screen:
        took = restarts.restart(processes, submissions, 2 * len(processes.workers) + 1, screen)
    restarted = Counter(processes.replaced[len(processes.names) :])
    assert restarted == {**dict.fromkeys(processes.workers, 2), processes.workers[0]: 3}
    assert {pool: len(each) for pool, each in took.items()} == {"short": 5, "medium": 4, "long": 4}
    assert submissions.accepted, "under load"


def test_a_single_fault_is_a_bar_that_is_missed_and_is_named(submissions: Clients) -> None:
    submissions.accepted |= {f"{number}": "id" for number in range(500)}
    took = {"medium": [2.0, 4.0], "long": [6.0]}
    kept = restarts.report(submissions, {"lost": [], "run lost": []}, took)
    assert kept.passed and kept.title.startswith("3 rolling restarts")
    assert kept.tables[0].rows[1] == ("long", "prefork", "1", "6.0 s", "6.0 s")
    broken = restarts.report(submissions, {"lost": [], "run lost": ["id-7 1 crashes"]}, took)
    assert not broken.passed and broken.notes == ["run lost: id-7 1 crashes"]
