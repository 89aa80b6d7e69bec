"""gunicorn with cells, as the product runs it: a frozen cell is its tenants' trouble alone."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from tests.integration.conftest import fresh_database
from tests.support.api_server import Answer, ApiServer, serving
from tests.support.installation import Installation, installed
from tests.support.slow_link import SlowLink
from tests.support.waiting import wait_for

JOB = json.dumps({"type": "echo", "payload": {}}).encode()
#: Longer than anything waits.
FROZEN_SECONDS = 60.0


@dataclass
class Served:
    """Two cells behind one port; the second is reached by a link that can be slow."""

    cells: Installation
    server: ApiServer
    link: SlowLink
    #: Of a tenant of each cell, by the cell's name; tests add others.
    keys: dict[str, str]

    def submit(self, caller: str) -> Answer:
        headers = {
            "Authorization": f"Bearer {self.keys[caller]}",
            "Content-Type": "application/json",
        }
        return self.server.request("POST", "/jobs", JOB, headers)

    def get(self, cell: str, path: str) -> Answer:
        return self.server.get(path, {"Authorization": f"Bearer {self.keys[cell]}"})


@pytest.fixture
def served(postgres: Running[EmbeddedPostgres], tmp_path: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        direct = make_url(urls[1])
        folder, port = str(direct.query["host"]), int(str(direct.query["port"]))
        link = stack.enter_context(SlowLink(folder, port))
        slow = direct.set(host="127.0.0.1", port=link.port, query={})
        links = {"cell-2": slow.render_as_string(hide_password=False)}
        cells = stack.enter_context(installed(urls, tmp_path, links=links))
        keys = {f"cell-{n}": cells.tenant(f"tenant-{n}", f"cell-{n}") for n in (1, 2)}
        server = stack.enter_context(
            serving(
                urls[0],
                tmp_path / "api",
                registry_url=urls[0],
                broker_url=f"filesystem://{tmp_path}/cell-1",
                anonymous_tenant="",
            )
        )
        found = Served(cells, server, link, keys)
        wait_for(lambda: found.submit("cell-2").status == 202, 30)
        yield found


def worst_of_hundred(answers: Iterable[Answer]) -> float:
    """How long the slowest of a hundred took."""
    seconds = sorted(answer.seconds for answer in answers)
    return seconds[int(len(seconds) * 0.99)]


def test_a_frozen_cell_delays_nobody_else(served: Served) -> None:
    for cell in ("cell-1", "cell-2"):
        for _ in range(4):  # so that the processes know both keys
            assert served.submit(cell).status == 202
    job_id = served.submit("cell-2").json()["id"]
    # Nobody has seen these keys when the other cell freezes.
    new = {f"new-{n}": served.cells.tenant(f"new-{n}", "cell-1") for n in range(10)}
    served.keys |= new
    # What a request takes here and now, whatever else the machine does.
    usual = worst_of_hundred(served.submit("cell-1") for _ in range(100))
    served.link.delay_seconds = FROZEN_SECONDS
    slow: list[Answer] = []
    stop = threading.Event()

    def call_the_frozen_one() -> None:
        while not stop.is_set():
            slow.append(served.submit("cell-2"))
            slow.append(served.get("cell-2", f"/jobs/{job_id}"))

    callers = [threading.Thread(target=call_the_frozen_one, daemon=True) for _ in range(8)]
    for caller in callers:
        caller.start()
    quick = [served.submit(name) for name in new]
    until = time.monotonic() + 6.0
    while time.monotonic() < until:
        quick.append(served.submit("cell-1"))
        time.sleep(0.02)
    stop.set()
    for caller in callers:
        caller.join(10)
    assert {answer.status for answer in quick} == {202}
    assert max(answer.seconds for answer in quick[: len(new)]) < max(1.0, 10 * usual)
    assert worst_of_hundred(quick) < max(0.5, 3 * usual)
    assert {answer.status for answer in slow} == {503}
    assert max(answer.seconds for answer in slow) < 2.0 + max(1.5, 5 * usual)
    assert min(answer.seconds for answer in slow) < max(0.3, usual), "once it is known to be away"
    assert all(answer.headers["retry-after"] for answer in slow)
    served.link.delay_seconds = 0.0
    served.link.cut()
    wait_for(lambda: served.submit("cell-2").status == 202, 30)


def test_the_server_stops_when_it_is_asked_to_whatever_a_cell_does(served: Served) -> None:
    assert served.submit("cell-1").status == 202
    served.link.delay_seconds = FROZEN_SECONDS
    began = time.monotonic()
    served.server.child.popen.send_signal(signal.SIGTERM)
    assert served.server.child.popen.wait(20) == 0
    assert time.monotonic() - began < 15
    rows = served.cells.databases["cell-1"].query("SELECT FROM processes WHERE kind = 'api'")
    assert not rows, "it has left the cell that answers"
