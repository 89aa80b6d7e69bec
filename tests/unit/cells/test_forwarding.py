"""What the router needs to send a request once more, or to another cell."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from app.api.http.complete_body import CompleteBody
from app.cells.forwarding import KeptInput, again, first_part, token_of, with_cookie


@pytest.mark.parametrize("sizes", [[-1], [3, 3, 100], [1] * 12])
def test_a_body_can_be_sent_again_however_it_was_read(sizes: list[int]) -> None:
    body = KeptInput(BytesIO(b"0123456789"), 10)
    read = b"".join(body.read(size) for size in sizes)
    assert read == b"0123456789"
    assert again(body).read() == again(body).read() == read


def test_nothing_is_kept_of_a_body_that_is_too_large_or_not_sent_again() -> None:
    body = KeptInput(BytesIO(b"0123456789"), 9)
    assert b"".join(body.read(4) for _ in range(4)) == b"0123456789"
    assert again(body).read() == b""
    body = KeptInput(BytesIO(b"0123456789"), 10)
    body.read()
    body.forget()
    assert again(body).read() == b""


def test_a_complete_body_is_read_from_its_beginning_again() -> None:
    body = CompleteBody(b"all")
    body.read()
    assert again(body).read() == b"all"


def test_both_spellings_of_a_key_choose_the_same_cell() -> None:
    assert token_of({"HTTP_IDEMPOTENCY_KEY": '"k1"'}) == (b"k1", True)
    assert token_of({"HTTP_IDEMPOTENCY_KEY": "k1"}) == (b"k1", True)


def test_without_a_valid_key_chance_decides() -> None:
    tokens = {token_of(environ)[0] for environ in ({}, {}, {"HTTP_IDEMPOTENCY_KEY": "\t"})}
    assert len(tokens) == 3
    assert not token_of({})[1] and not token_of({"HTTP_IDEMPOTENCY_KEY": "\t"})[1]


@pytest.mark.parametrize(
    ("path", "part"), [("/jobs/batch", "jobs"), ("/tenant", "tenant"), ("/", ""), ("*", "*")]
)
def test_the_first_part_of_a_path(path: str, part: str) -> None:
    assert first_part(path) == part


def test_a_browser_is_told_the_cell_that_it_named() -> None:
    sent: list[list[tuple[str, str]]] = []

    def start(_: str, headers: list[tuple[str, str]], *rest: object) -> Any:
        sent.append(headers)

    with_cookie({"wsgi.url_scheme": "https"}, start, "b")("200 OK", [("A", "1")])
    with_cookie({"HTTP_SEC_FETCH_SITE": "cross-site"}, start, "b")("200 OK", [("A", "1")])
    [headers, unchanged] = sent
    assert headers[0] == ("A", "1") and unchanged == [("A", "1")]
    assert headers[1][1].startswith("fairline_cell=b; ") and "Secure" in headers[1][1]
