"""The events of a tenant with three cells: one stream, resumed where it was left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from werkzeug.test import EnvironBuilder

from app.cells.fan_out import begin
from app.cells.feed_merge import parse_feed_position
from app.policy.placement import Placement
from app.reads.events import stream
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.jobs.ids import new_id
from tests.support.event_rows import announce, bring, locked_out
from tests.support.several_cells import NAMES, SeveralCells


@pytest.fixture(autouse=True)
def often_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a cell's stream notices soon that its client has gone."""
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 0.5)


class Listener:
    """A client of ``/events``."""

    def __init__(self, pieces: Iterator[bytes], last_event_id: str) -> None:
        self._pieces = pieces
        self._heard: list[str] = []
        self.last_event_id = last_event_id

    def read(self) -> bool:
        """Read what comes next; whether there was anything."""
        data = next(self._pieces, None)
        for line in (data or b"").decode().splitlines():
            if line.startswith("id: "):
                self.last_event_id = line[4:]
            elif line.startswith("data: "):
                told = json.loads(line[6:])
                self._heard.append(told.get("id") or told["event"])
        return data is not None

    def hear(self, count: int, seconds: float = 15.0) -> list[str]:
        """The next events: ids of jobs that ended, or names of others."""
        deadline = time.monotonic() + seconds
        while len(self._heard) < count:
            assert time.monotonic() < deadline, f"heard only {self._heard}"
            assert self.read(), "the stream ended"
        heard, self._heard = self._heard[:count], self._heard[count:]
        return heard

    def wait_for_place(self) -> str:
        while not self.last_event_id:
            assert self.read()
        return self.last_event_id


@contextmanager
def listening(
    cells: SeveralCells, last_event_id: str = "", path: str = "/events"
) -> Iterator[Listener]:
    headers = [("Authorization", f"Bearer {cells.key}")]
    if last_event_id:
        headers.append(("Last-Event-ID", last_event_id))
    environ = EnvironBuilder(path, headers=headers).get_environ()
    response = begin(cells, environ)  # type: ignore[arg-type]  # an application too
    assert response.status == 200, response.read()
    assert any(value.startswith("text/event-stream") for _, value in response.headers)
    try:
        yield Listener(iter(response.pieces), last_event_id)
    finally:
        response.close()


def end_in_cell(cells: SeveralCells, cell: str) -> str:
    job_id = cells.submit(cell)
    bring(cells.databases[cell], job_id, "cancelled")
    return job_id


def test_ends_of_all_cells_come_in_the_order_in_which_they_happened(cells: SeveralCells) -> None:
    with listening(cells) as client:
        position = parse_feed_position(client.wait_for_place())
        assert position is not None
        assert sorted(position.cells) == list(NAMES)
        ended = []
        for cell in ("cell-2", "cell-1", "cell-3", "cell-1", "cell-2"):
            ended.append(end_in_cell(cells, cell))
            time.sleep(0.02)  # times of events are milliseconds
        assert client.hear(5) == ended


def test_a_client_that_reconnects_gets_what_it_missed_once(cells: SeveralCells) -> None:
    with listening(cells) as client:
        client.wait_for_place()
        before = [end_in_cell(cells, cell) for cell in NAMES]
        assert sorted(client.hear(3)) == sorted(before)
        position = client.last_event_id
    missed = [end_in_cell(cells, cell) for cell in NAMES * 2]

    with listening(cells, position) as client:
        assert sorted(client.hear(6)) == sorted(missed)
        position = client.last_event_id
        announce(cells.databases["cell-3"], "circuit_open", 1)
        assert client.hear(1) == ["circuit_open"]
    with listening(cells, position) as client:
        assert client.hear(1) == ["circuit_open"], "resumed before it"


def test_a_stream_of_one_type_leaves_out_others(cells: SeveralCells) -> None:
    with listening(cells, path="/events?type=sleep") as client:
        client.wait_for_place()
        end_in_cell(cells, "cell-1")
        wanted = cells.submit("cell-2", type="sleep")
        bring(cells.databases["cell-2"], wanted, "cancelled")
        assert client.hear(1) == [wanted]


def test_a_cell_that_is_away_delays_its_own_events_only(
    cells: SeveralCells, postgres: Running[EmbeddedPostgres]
) -> None:
    with listening(cells) as client:
        position = client.wait_for_place()
    missed = end_in_cell(cells, "cell-2")
    with locked_out(cells.databases["cell-2"], postgres):
        cells.away = {"cell-2"}
        answer = cells.call("GET", "/events")
        assert answer.status_code == 503, "a client that begins needs a position in every cell"
        with listening(cells, position) as client:
            there = end_in_cell(cells, "cell-1")
            assert client.hear(1) == [there]
            position = client.last_event_id
    cells.away.clear()
    with listening(cells, position) as client:
        assert client.hear(1) == [missed]


def test_a_cell_that_comes_back_joins_the_open_stream(cells: SeveralCells) -> None:
    with listening(cells) as client:
        position = client.wait_for_place()
    cells.away = {"cell-3"}
    missed = end_in_cell(cells, "cell-3")
    with listening(cells, position) as client:
        there = end_in_cell(cells, "cell-2")
        assert client.hear(1) == [there]
        cells.away.clear()
        assert client.hear(1) == [missed]


def test_a_tenant_that_moves_is_followed(cells: SeveralCells) -> None:
    """From one cell, over both, to the other: with the position of the time before."""
    cells.placement = Placement(1, {"cell-1": 1.0})
    with listening(cells) as client:
        client.wait_for_place()
        first = end_in_cell(cells, "cell-1")
        assert client.hear(1) == [first]
        cells.placement = Placement(2, {"cell-1": 0.0, "cell-2": 1.0})
        while client.read():
            pass  # it ends soon
        position = client.last_event_id
    old, new = end_in_cell(cells, "cell-1"), end_in_cell(cells, "cell-2")
    with listening(cells, position) as client:
        assert sorted(client.hear(2)) == sorted([old, new])
        position = client.last_event_id
    cells.placement = Placement(3, {"cell-2": 1.0})
    last = end_in_cell(cells, "cell-2")
    with listening(cells, position) as client:
        assert client.hear(1) == [last]
        assert parse_feed_position(client.last_event_id).cells.keys() == {"cell-2"}  # type: ignore[union-attr]


def test_a_position_from_before_there_were_cells_is_that_of_the_first(cells: SeveralCells) -> None:
    with listening(cells) as client:
        position = parse_feed_position(client.wait_for_place())
    assert position is not None
    missed = [end_in_cell(cells, "cell-1"), end_in_cell(cells, "cell-2")]

    with listening(cells, position.cells["cell-1"]) as client:
        assert sorted(client.hear(2)) == sorted(missed)
    wrong = cells.call("GET", "/events", headers={"Last-Event-ID": "nonsense"})
    assert wrong.status_code == 422


def test_the_stream_of_one_job_is_that_of_its_cell(cells: SeveralCells) -> None:
    job_id = cells.databases["cell-2"].submit(id=new_id(cell=3))
    with listening(cells, path=f"/jobs/{job_id}/events") as client:
        assert client.hear(1) == [job_id]
        bring(cells.databases["cell-2"], job_id, "cancelled")
        assert client.hear(1) == [job_id]
        assert not client.read(), "it ends with the job"
    assert cells.call("GET", f"/jobs/{new_id(cell=1)}/events").status_code == 404


def test_head_has_no_stream(cells: SeveralCells) -> None:
    with listening(cells) as client:
        position = client.wait_for_place()
    answer = cells.call("HEAD", "/events", headers={"Last-Event-ID": position})
    assert (answer.status_code, answer.data) == (200, b"")
