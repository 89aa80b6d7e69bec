"""Lines for people and lines for machines, with the ids of those whom they are about."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from app.log_ids import CALLER, current_request
from app.logs import StderrHandler, configure_logging, lines_of
from models.jobs.claim import Claim, JobRef
from tasks.context import JobContext
from tasks.worker.held import current_claim

TRACE = "0af7651916cd43dd8448eb211c80319c"


def claim(number: int = 1) -> Claim:
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    ref = JobRef(f"job-{number}", 3)
    return Claim(ref, 7, "echo", "short", 1, 0, 0, 0, parent, datetime.now(UTC), {}, None)


class Kept(logging.Handler):
    """Formats in both ways, at once, as a handler does."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[str] = []
        self.json: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.plain.append(lines_of("plain").format(record))
        self.json.append(json.loads(lines_of("json").format(record)))


@pytest.fixture
def kept() -> Iterator[Kept]:
    current_request.set(None)  # requests of other tests may have left theirs
    handler, logger = Kept(), logging.getLogger("fairline.job")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    outside = current_request.set(None)  # whatever ran in this process before
    yield handler
    current_request.reset(outside)
    logger.removeHandler(handler)


def test_a_line_for_people_is_as_it_always_was(kept: Kept) -> None:
    logging.getLogger("fairline.job").warning("%d jobs", 3)
    (line,) = kept.plain
    time, rest = line.split(" ", 1)
    assert datetime.fromisoformat(time).tzinfo is UTC
    assert rest == "WARNING fairline.job 3 jobs"


def test_nothing_that_is_logged_begins_a_line_for_people(kept: Kept) -> None:
    forged = "2026-11-15T14:00:00.000Z ERROR models.leadership the database is lost"
    try:
        raise ValueError(f"odd\n{forged}")
    except ValueError:
        JobContext("job-1", 7).log.exception("a\n%s\r%s\x1b[2J\x9b\u2028\u202e\tü", forged, forged)
    (line,) = kept.plain
    first, *rest = line.splitlines()
    assert first.endswith("ERROR fairline.job a job_id=job-1 tenant_id=7 attempt=1")
    assert rest[0] == rf"    {forged}\r{forged}\x1b[2J\x9b\u2028\u202e" + "\tü"
    assert rest[1] == "    Traceback (most recent call last):"
    assert rest[-2:] == ["    ValueError: odd", f"    {forged}"]
    assert all(each.startswith("    ") for each in rest)


@pytest.mark.parametrize(
    ("environment", "option", "level"),
    [
        ("debug", logging.WARNING, logging.DEBUG),
        ("", logging.WARNING, logging.WARNING),
        (None, logging.WARNING, logging.WARNING),
        (None, None, logging.INFO),
    ],
)
def test_the_environment_s_level_counts_before_celery_s(
    environment: str | None, option: int | None, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: chosen.append(given["level"]))
    if environment is None:
        monkeypatch.delenv("FAIRLINE_LOG_LEVEL", raising=False)
    else:
        monkeypatch.setenv("FAIRLINE_LOG_LEVEL", environment)
    configure_logging(option)
    assert [logging.getLevelNamesMapping().get(each, each) for each in chosen] == [level]


def test_a_line_for_machines_is_one_object(kept: Kept) -> None:
    logging.getLogger("fairline.job").warning("two\nlines, %s", "ünd")
    (line,) = kept.json
    assert line.keys() == {"time", "level", "logger", "message", "process"}
    assert (line["level"], line["logger"]) == ("warning", "fairline.job")
    assert line["message"] == "two\nlines, ünd"
    assert line["time"].endswith("Z")


def test_what_a_job_says_names_the_job_in_both(kept: Kept) -> None:
    bound = current_claim.set(claim())
    JobContext("job-1", 7, attempt=2).log.info("hello")
    current_claim.reset(bound)
    ids = {"job_id": "job-1", "job_type": "echo", "tenant_id": 7, "lease": 3, "attempt": 2}
    assert kept.json[0].items() >= {**ids, "trace_id": TRACE}.items()
    assert kept.plain[0].endswith("fairline.job hello job_id=job-1 tenant_id=7 attempt=2")


def test_a_thread_of_the_job_s_own_is_known_by_its_context(kept: Kept) -> None:
    bound = current_claim.set(claim())
    log = JobContext("job-1", 7).log
    thread = threading.Thread(target=log.info, args=("from a thread",))
    thread.start()
    thread.join()
    current_claim.reset(bound)
    assert kept.json[0].items() >= {"job_id": "job-1", "tenant_id": 7, "attempt": 1}.items()


def test_greenlets_at_a_time_do_not_mix_up_their_jobs(kept: Kept) -> None:
    def run(number: int) -> None:
        current_claim.set(claim(number))
        gevent.sleep(0)
        logging.getLogger("fairline.job").info("%d", number)

    gevent.joinall([gevent.spawn(run, number) for number in range(5)], raise_error=True)
    assert {line["message"]: line["job_id"] for line in kept.json} == {
        str(number): f"job-{number}" for number in range(5)
    }
    assert current_claim.get() is None


def test_a_request_names_its_caller(kept: Kept) -> None:
    caller = SimpleNamespace(tenant=SimpleNamespace(id=7))
    bound = current_request.set(
        {"REQUEST_METHOD": "POST", "PATH_INFO": "/jobs", CALLER: caller, "HTTP_X": "secret"}
    )
    logging.getLogger("fairline.job").warning("503")
    current_request.reset(bound)
    (line,) = kept.json
    assert line.items() >= {"method": "POST", "path": "/jobs", "tenant_id": 7}.items()
    assert "secret" not in str(line)


def test_an_exception_is_text_and_half_a_character_no_obstacle(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What pytest captures goes between its processes, and half a character cannot.
    monkeypatch.setattr(logging.getLogger("fairline.job"), "propagate", False)
    try:
        raise ValueError("\ud800 is half a character")
    except ValueError:
        logging.getLogger("fairline.job").exception("it failed")
    (line,) = kept.json
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("? is half a character")


def test_a_forked_process_can_log_though_a_thread_was_logging() -> None:
    handler = StderrHandler()
    assert handler.lock is not None
    logging_now, forked = threading.Event(), threading.Event()

    def log() -> None:
        with handler.lock:
            logging_now.set()
            forked.wait(10)

    thread = threading.Thread(target=log)
    thread.start()
    assert logging_now.wait(5)
    if (child := os.fork()) == 0:
        os._exit(0 if handler.lock.acquire(timeout=2) else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
