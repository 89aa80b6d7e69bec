"""What is kept of a run is bounded, says where it failed, and holds no secrets."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.context import JobContext, filled_in
from tasks.worker import texts
from tasks.worker.run_log import (
    LOG_BYTES,
    MOST_LINES,
    TRACEBACK_CHARACTERS,
    RunLog,
    stack_of,
    traceback_of,
)
from tasks.worker.texts import plain_text

KEY = "fair_ab12cd34_" + "Z" * 32


def kept(log: RunLog) -> tuple[list[dict[str, str]], int]:
    text, dropped = log.document()
    return ([] if text is None else json.loads(text)), dropped


@given(st.lists(st.text(max_size=9), max_size=9), st.integers(0, MOST_LINES // 2))
def test_the_newest_lines_are_kept_within_bounds(some: list[str], times: int) -> None:
    log, lines = RunLog(), some * times
    for line in lines:
        log.add(logging.INFO, line)
    found, dropped = kept(log)
    assert len(found) + dropped == len(lines)
    assert len(found) <= MOST_LINES
    messages = [plain_text(line, 2_000) for line in lines]
    assert [line["message"] for line in found] == (messages[-len(found) :] if found else [])


@given(st.integers(1, MOST_LINES + 50), st.integers(0, 2_500))
def test_long_lines_do_not_add_up(count: int, length: int) -> None:
    log = RunLog()
    for _ in range(count):
        log.add(logging.WARNING, "ü" * length)
    found, dropped = kept(log)
    assert found and len(found) + dropped == count
    assert sum(len(line["message"].encode()) for line in found) <= LOG_BYTES


@given(st.text())
def test_whatever_is_logged_can_be_stored(text: str) -> None:
    log = RunLog()
    log.add(logging.INFO, text)
    (line,) = kept(log)[0]
    assert "\0" not in line["message"]
    line["message"].encode()


def test_a_run_that_goes_on_writes_its_lines_less_and_less_often() -> None:
    log, written = RunLog(), []
    for second in range(0, 3_600, 2):
        log.add(logging.INFO, "again")
        if log.is_due(float(second), float(second)):
            log.note_written(log.count, float(second))
            written.append(second)
    assert written[:3] == [0, 2, 4] and len(written) < 150
    assert not log.is_due(9_999.0, 9_999.0) or log.count > 1_799


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"bad key {KEY}!", "bad key [hidden]!"),
        ("key sk-ant-api03-abcdefgh refused", "key [hidden] refused"),
        ("{'Authorization': 'Bearer abc.def'}", "{'Authorization': 'Bearer [hidden]'}"),
        ("postgresql://me:pass@host/db", "postgresql://[hidden]@host/db"),
        ("http://host/a:b@c", "http://host/a:b@c"),
        ("password=hunter2, x", "password=[hidden], x"),
        ("{'Password': 'hunter2'}", "{'Password': '[hidden]'}"),
        ("GET /x?token=abcdef&y=1", "GET /x?token=[hidden]&y=1"),
        ("unexpected token: lambda", "unexpected token: lambda"),
        ("max_tokens=1024", "max_tokens=1024"),
        ("a task-number12 is no key", "a task-number12 is no key"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert plain_text(text, 200) == shown


def test_the_settings_of_the_process_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "correct horse battery")
    texts.own_secrets.cache_clear()
    try:
        assert plain_text("it is correct horse battery.", 100) == "it is [hidden]."
        assert plain_text("it is correct horse battery.", 10) == "it is [hid"
    finally:
        texts.own_secrets.cache_clear()


def fail(secret: str) -> None:
    password = secret  # a local variable, which no traceback shows
    raise ValueError("no luck") from KeyError(len(password))


def test_a_traceback_names_the_place_and_not_the_values() -> None:
    try:
        fail("hunter2 hunter2")
    except ValueError as error:
        text = traceback_of(error)
    assert 'raise ValueError("no luck")' in text and text.endswith("ValueError: no luck")
    assert "KeyError" in text and "direct cause" in text
    assert 'File "tests/unit/tasks/test_run_log.py"' in text
    assert "hunter2" not in text.replace('fail("hunter2 hunter2")', "")


def deep(steps: int) -> None:
    if steps:
        deep(steps - 1)
    raise RuntimeError("x" * 50_000)


def test_a_long_traceback_keeps_its_end() -> None:
    try:
        deep(200)
    except RuntimeError as error:
        text = traceback_of(error)
    assert len(text) < TRACEBACK_CHARACTERS + 100 and text.endswith("xxx")


class Odd(Exception):
    def __str__(self) -> str:
        raise SystemExit("there are no words for it")


def test_an_odd_error_has_a_traceback_and_a_message_all_the_same() -> None:
    assert "Odd" in traceback_of(Odd())
    assert plain_text(Odd(), 100) == "(SystemExit while reading the message)"


def test_the_stack_of_a_run_ends_where_it_is() -> None:
    text = stack_of(sys._getframe())
    assert text.rstrip().endswith("text = stack_of(sys._getframe())")


def test_a_job_logs_as_with_any_logger(caplog: pytest.LogCaptureFixture) -> None:
    ctx: Any = JobContext("id", tenant_id=7)
    with caplog.at_level(logging.DEBUG, "fairline.job"):
        ctx.log("plain")
        ctx.log.warning("%d of %s", 3, "five")
        ctx.log.debug("not kept")
    assert ctx.logged == ["plain", "3 of five"]
    assert filled_in("%d %d", (1,)) == "%d %d", "one argument too few ends no job"
    first, second, *_ = caplog.records
    assert (first.funcName, first.levelname) == (
        "test_a_job_logs_as_with_any_logger",
        "INFO",
    )
    assert second.funcName == first.funcName
    assert first.job_id == "id" and first.tenant_id == 7  # type: ignore[attr-defined]
