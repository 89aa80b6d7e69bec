"""What an answer of a cell says about the cell."""

from __future__ import annotations

import pytest

from app.cells.fan_out import CellAnswer
from app.errors import CellUnavailable


@pytest.mark.parametrize(
    ("status", "body", "away"),
    [
        (503, b"", True),
        (503, b"<!doctype html><title>503</title>", True),
        (503, b'{"code": "%s"}' % CellUnavailable.code.encode(), True),
        (503, b'{"code": "SOMETHING_ELSE"}', False),
        (500, b"", False),
        (200, b"<!doctype html>", False),
    ],
)
def test_which_answers_say_that_a_cell_is_away(status: int, body: bytes, away: bool) -> None:
    assert CellAnswer("a", status, (), body).away is away
