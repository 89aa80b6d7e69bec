"""What the headers of an answer say about Claude's rate limits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.quota import Allowance, QuotaReading
from tasks.scorers.headers import quota_reading

NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
NAMES = ("requests", "tokens", "input-tokens", "output-tokens")


def told(name: str, limit: str, remaining: str, reset: str) -> dict[str, str]:
    prefix = f"anthropic-ratelimit-{name}"
    return {f"{prefix}-limit": limit, f"{prefix}-remaining": remaining, f"{prefix}-reset": reset}


def test_every_limit_is_read_with_the_seconds_until_its_reset() -> None:
    headers = {
        **told("requests", "60", "59", "2026-11-15T09:30:01Z"),
        **told("input-tokens", "50000", "48000", "2026-11-15T09:30:02.5Z"),
        **told("output-tokens", "10000", "0", "2026-11-15T09:31:00+00:00"),
        **told("tokens", "60000", "48000", "2026-11-15T09:30:15Z"),
    }
    assert quota_reading(headers, NOW) == QuotaReading(
        requests=Allowance(60, 59, 1.0),
        tokens_in=Allowance(50_000, 48_000, 2.5),
        tokens_out=Allowance(10_000, 0, 60.0),
        tokens=Allowance(60_000, 48_000, 15.0),
    )


def test_a_reset_is_read_by_the_clock_of_the_server() -> None:
    headers = {
        **told("requests", "60", "0", "2026-11-15T09:40:30Z"),
        "date": "Sun, 15 Nov 2026 09:40:00 GMT",
    }
    assert quota_reading(headers, NOW) == QuotaReading(requests=Allowance(60, 0, 30.0))


def test_a_reset_that_is_past_or_missing_is_no_trouble() -> None:
    past = quota_reading(told("requests", "60", "5", "2026-11-15T09:00:00Z"), NOW)
    assert past == QuotaReading(requests=Allowance(60, 5, 0.0))
    missing = quota_reading(told("requests", "60", "5", "soon"), NOW)
    assert missing == QuotaReading(requests=Allowance(60, 5, 60.0))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"retry-after": "5"},
        told("requests", "many", "5", "2026-11-15T09:30:01Z"),
        told("requests", "0", "0", "2026-11-15T09:30:01Z"),
        told("requests", "nan", "inf", "2026-11-15T09:30:01Z"),
        {"anthropic-ratelimit-requests-limit": "60"},
    ],
)
def test_what_says_nothing_is_no_reading(headers: dict[str, str]) -> None:
    assert quota_reading(headers, NOW) is None


texts = st.one_of(st.text(max_size=20), st.floats().map(str), st.integers().map(str))


@given(st.sampled_from(NAMES), texts, texts, texts, texts)
def test_no_header_can_make_it_fail(
    name: str, limit: str, remaining: str, reset: str, date: str
) -> None:
    reading = quota_reading({**told(name, limit, remaining, reset), "date": date}, NOW)
    for allowance in reading.allowances().values() if reading else ():
        assert allowance.limit > 0
        assert allowance.remaining >= 0
        assert allowance.reset_seconds >= 0
