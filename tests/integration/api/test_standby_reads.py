"""Lists and leaderboards from a standby: with its lag, and from the primary where it is too far
behind or gone. A real pair of servers and the API as the product runs it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from app.reads.standby import ANSWER_SECONDS
from app.stack.postgres import DATABASE, SUPERUSER
from tests.support.api_server import Answer, ApiServer, serving
from tests.support.standby import Pair, ask, replicated
from tests.support.waiting import wait_for

LIMIT_SECONDS = 1.0
SCORED = "INSERT INTO applications (id, tenant_id, candidate, role, score, scored_at) "
SCORED += "SELECT gen_random_uuid(), 1, %s, 'general', 50, now()"
NEWEST = {"Cache-Control": "no-cache"}
PAGES = (
    *("/console/leaderboard", "/console/jobs", "/console/dead-letters", "/console/tenants"),
    *("/console/schedules", "/", "/console/workers", "/console/limits"),
)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with replicated(tmp_path) as servers:
        ask(servers.primary, "INSERT INTO tenants (name) VALUES ('demo')", database=DATABASE)
        servers.catch_up()
        yield servers


@pytest.fixture(params=[1])
def api(pair: Pair, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """Reads from the standby, which it names after a server that does not exist.

    The parameter is the number of its processes.
    """
    hosts = f"{quote(str(tmp_path / 'nowhere'))},{quote(str(pair.standby.service.sockets))}"
    read = f"postgresql+psycopg2://{SUPERUSER}@/{DATABASE}?host={hosts}"
    with serving(
        pair.url(),
        tmp_path / "api",
        api_workers=request.param,
        console_open="true",
        read_database_url=f"{read}&target_session_attrs=prefer-standby",
        read_lag_seconds=LIMIT_SECONDS,
    ) as started:
        yield started


def board(api: ApiServer, **headers: str) -> Answer:
    answer = api.get("/leaderboard", headers)
    assert answer.status == 200, answer
    return answer


def names(answer: Answer) -> set[str]:
    return {entry["candidate"] for entry in answer.json()["entries"]}


def lag(answer: Answer) -> float:
    return float(answer.headers["fairline-lag"])


def reads_standby(api: ApiServer, pair: Pair) -> bool:
    """Whether the leaderboard was read from the standby, as that server counts it."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE strpos(query, 'FROM applications') > 0"
    count += " AND pid <> pg_backend_pid()"
    board(api)
    return bool(ask(pair.standby, count)[0][0])


def add(pair: Pair, name: str) -> None:
    ask(pair.primary, SCORED, name, database=DATABASE)


def metric(api: ApiServer) -> float:
    """The lag that a process reports; infinite while it has none to report."""
    lags = [
        float(line.split()[1])
        for line in api.get("/metrics").body.decode().splitlines()
        if line.startswith("fairline_read_lag_seconds ")
    ]
    return lags[0] if lags else math.inf


def is_read_from_standby(api: ApiServer, path: str) -> bool:
    page = api.get(path, {"Accept": "text/html"})
    assert page.status == 200, f"{path}: {page}"
    return b"a standby, at most" in page.body


def footer(api: ApiServer) -> str:
    """Where the overview, which is read from the primary, says that lists are read from."""
    page = api.get("/", {"Accept": "text/html"}).body.decode()
    return " ".join(page.partition("are read from")[2].partition("</footer>")[0].split())


def test_leaderboard_follows_the_standby_within_the_limit(api: ApiServer, pair: Pair) -> None:
    wait_for(lambda: reads_standby(api, pair), 60)
    add(pair, "Ada")
    wait_for(lambda: names(board(api)) == {"Ada"})
    for _ in range(5):
        assert 0.0 <= lag(board(api)) <= LIMIT_SECONDS
        time.sleep(0.3)  # an idle primary makes no lag
    for path in PAGES:  # on a busy machine a standby may be too far behind for a moment
        wait_for(lambda path=path: is_read_from_standby(api, path))  # type: ignore[misc]
    for path in ("/jobs", "/dead-letters", "/schedules"):
        answer = api.get(path)
        assert answer.status == 200
        assert lag(answer) <= LIMIT_SECONDS
    wait_for(lambda: metric(api) <= LIMIT_SECONDS)
    # A client that was told of its job finds it, and sees what it has changed if it says so.
    ask(pair.standby, "SELECT pg_wal_replay_pause()")
    accepted = api.submit_job()
    answer = api.get(f"/jobs/{accepted}")
    assert answer.status == 200
    assert "fairline-lag" not in answer.headers
    newest = api.get("/jobs", NEWEST)
    assert accepted in {job["id"] for job in newest.json()["jobs"]}
    assert lag(newest) == 0.0


def test_standby_that_does_not_replay_is_left_until_it_does(api: ApiServer, pair: Pair) -> None:
    wait_for(lambda: reads_standby(api, pair), 60)
    ask(pair.standby, "SELECT pg_wal_replay_pause()")
    add(pair, "Ada")
    wait_for(lambda: names(board(api)) == {"Ada"})
    assert metric(api) > LIMIT_SECONDS
    assert footer(api).startswith("the primary: no standby")
    ask(pair.standby, "SELECT pg_wal_replay_resume()")
    wait_for(lambda: metric(api) <= LIMIT_SECONDS)
    wait_for(lambda: reads_standby(api, pair))


@pytest.mark.parametrize("api", [2], indirect=True)
def test_processes_that_read_no_list_know_the_lag(api: ApiServer) -> None:
    first = {footer(api) for _ in range(4)}
    assert not any("no standby" in text for text in first), "none was asked yet"
    # Requests reach either process.
    wait_for(lambda: all(metric(api) <= LIMIT_SECONDS for _ in range(12)))
    wait_for(lambda: all(footer(api).startswith("a standby") for _ in range(12)))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_standby_that_is_gone_or_frozen_costs_one_read_a_moment(
    api: ApiServer, pair: Pair, end: signal.Signals
) -> None:
    wait_for(lambda: reads_standby(api, pair), 60)
    postgres = pair.standby.children[0].pid
    processes = [postgres, *children(postgres)]
    signal_all(processes, end)
    try:
        answers = [board(api) for _ in range(40)]
        waited = [answer for answer in answers if answer.seconds >= ANSWER_SECONDS]
        assert len(waited) < 10, "most of them asked a server that does not answer"
        add(pair, "Ada")
        assert names(board(api)) == {"Ada"}
    finally:
        if end == signal.SIGSTOP:
            signal_all(processes, signal.SIGCONT)
    if end == signal.SIGSTOP:
        wait_for(lambda: reads_standby(api, pair), 60)


def test_standby_that_was_promoted_is_the_primary(api: ApiServer, pair: Pair) -> None:
    wait_for(lambda: reads_standby(api, pair), 60)
    pair.primary.kill()
    pair.promote()
    ask(pair.standby, SCORED, "Grace", database=DATABASE)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = api.get("/leaderboard")
        if answer.status == 200 and names(answer) == {"Grace"}:
            break
    else:
        pytest.fail("the new primary was not read")
    assert api.submit_job()


def children(pid: int) -> list[int]:
    """Processes of a server."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Signal those of the processes that are still there: a server's come and go."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
