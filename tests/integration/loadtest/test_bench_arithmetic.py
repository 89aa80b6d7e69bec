"""The figures of the load tests are only as good as their arithmetic."""

from __future__ import annotations

import pytest

from loadtest.closed_loop import Request, read_response, request_bytes
from loadtest.figures import Sample, medians, percentile, steady_rate
from loadtest.report import Bar


def test_bursts_do_not_blur_the_steady_rate() -> None:
    bursts = [burst * 1.5 for burst in range(40) for _ in range(10)]
    assert steady_rate(bursts, 10.0, 60.0) == pytest.approx(10 / 1.5, rel=0.005)


def test_too_few_events_have_no_rate() -> None:
    assert steady_rate([], 0.0, 1.0) == 0.0
    assert steady_rate([0.5], 0.0, 1.0) == 0.0


def test_percentile_of_few_values_is_one_of_them() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(100)], 0.5) == 50.0


def test_answer_is_read_only_when_complete() -> None:
    answer = b"HTTP/1.1 202 ACCEPTED\r\nContent-Length: 5\r\nETag: x\r\n\r\nhello"
    assert all(read_response(answer[:size]) is None for size in range(len(answer)))
    response = read_response(answer)
    assert response is not None and response.status == 202
    assert response.header("etag") == "x"


def test_304_needs_no_length() -> None:
    response = read_response(b"HTTP/1.1 304 NOT MODIFIED\r\nETag: x\r\n\r\n")
    assert response is not None and response.status == 304


def test_request_names_the_length_of_its_body() -> None:
    raw = request_bytes(Request("POST", "/applications", body='{"a":"é"}'), 8000)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_median_is_taken_of_each_value() -> None:
    rounds = [
        Sample("a", rate, p50_ms=rate, cores={"api": 1.0, "machine": 1.5}) for rate in (1, 9, 3)
    ]
    middle = medians(rounds)["a"]
    assert (middle.rate, middle.p50_ms, middle.p99_ms) == (3, 3, None)
    assert middle.strangers == pytest.approx(0.5)


def test_bar_is_passed_on_its_side_only() -> None:
    assert Bar("", 4.0, ">=", 4.0).passed and not Bar("", 3.99, ">=", 4.0).passed
    assert Bar("", 1.0, "<=", 1.0).passed and not Bar("", 1.01, "<=", 1.0).passed
