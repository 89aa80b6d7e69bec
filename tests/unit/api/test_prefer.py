"""``Prefer: wait``: what a client says, and what is ignored."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.http.prefer import MOST_SECONDS, ended_reply, parse_wait
from models.store.errors import StateStoreUnavailable


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("wait=30", 30),
        ("Wait=30", 30),
        (" wait = 30 ", 30),
        ('wait="30"', 30),
        ("wait=30; foo=bar", 30),
        ("respond-async, wait=10", 10),
        ('handling=lenient; a="b, wait=1", wait=5', 5),
        ("wait=5, wait=7", 5),
        ("wait=0", 0),
        ("wait=007", 7),
        ("wait=51", 50),
        (f"wait={'9' * 900}", 50),
    ],
)
def test_a_wait_is_understood_and_bounded(header: str, seconds: int) -> None:
    assert parse_wait(header) == seconds


@pytest.mark.parametrize(
    "header",
    [
        "",
        "wait",
        "wait=",
        "wait=x",
        "wait=-1",
        "wait=1.5",
        "wait=٣",
        "waits=3",
        "x; wait=3",
        "wait 3",
    ],
)
def test_what_is_malformed_is_ignored(header: str) -> None:
    assert parse_wait(header) is None


@given(st.text(max_size=2_000))
def test_no_header_is_an_error(header: str) -> None:
    found = parse_wait(header)
    assert found is None or 0 <= found <= MOST_SECONDS


def test_an_accepted_job_that_cannot_be_read_is_still_accepted() -> None:
    def unavailable(_: str) -> None:
        raise StateStoreUnavailable

    services = Mock()
    services.events.wait_for_end.return_value = True
    headers = {"Location": "/jobs/1", "Retry-After": "2"}
    environ = {"HTTP_PREFER": "wait=5"}
    assert ended_reply(services, environ, "1", unavailable, headers) is None
    assert headers == {"Location": "/jobs/1", "Retry-After": "2", "Preference-Applied": "wait"}
