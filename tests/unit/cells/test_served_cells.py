"""Which application answers for a cell, as cells and what is known of them change."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from flask import Flask

from app.cells import served_cells
from app.cells.served_cells import ServedCells
from app.server.cells import host_groups
from models.cells.registry import CellRow
from tests.support.waiting import wait_for

CELLS = {
    name: CellRow(name, number, "", f"postgresql://{name}/db", "memory://", "", "open")
    for number, name in enumerate(("cell-1", "cell-2"), 1)
}


def test_a_home_cell_that_is_recognised_late_gets_the_process_s_own_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_cells, "HOME_SECONDS", 0.0)
    known: list[str] = []
    begun: list[Flask] = []
    ended: list[Flask] = []

    def home_name(_: Mapping[str, CellRow]) -> str | None:
        return known[0] if known else None

    def begin(app: Flask, _: threading.Event) -> None:
        begun.append(app)

    def end(app: Flask, _: threading.Event) -> None:
        ended.append(app)

    home = Flask("home")
    served = ServedCells(home, home_name, lambda row: Flask(row.name), begin, end)
    served.update(CELLS)
    served.begin_serving()
    separate, other = served.app_of("cell-1"), served.app_of("cell-2")
    assert separate is not home and separate in begun

    known.append("cell-1")
    served.update(CELLS)

    assert served.app_of("cell-1") is home
    wait_for(lambda: ended == [separate])
    assert served.app_of("cell-2") is other
    served.update(CELLS)
    assert served.apps() == [home, other] and begun.count(home) == 1


def test_cells_that_are_drained_are_a_group_of_their_own() -> None:
    rows = [
        CellRow(name, number, region, "", "", "", state)
        for number, (name, region, state) in enumerate(
            [("a", "eu", "draining"), ("b", "us", "open"), ("c", "eu", "open")], 1
        )
    ]
    assert host_groups("eu", rows) == (["c"], ["a"])
    assert host_groups("us", rows) == (["b"], [])
