"""Ids sort by time and parse strictly."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.jobs.ids import new_id, parse_id


def test_ids_are_unique_uuids_of_version_7_in_the_order_of_their_making() -> None:
    ids = [new_id() for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert all(uuid.UUID(one).version == 7 for one in ids)
    stamps = [one[:18] for one in ids]
    assert stamps == sorted(stamps)


@given(st.uuids())
def test_an_id_is_taken_in_any_case_and_made_canonical(value: uuid.UUID) -> None:
    assert parse_id(str(value).upper()) == str(value)


@pytest.mark.parametrize("text", ["", "1", "x" * 36, "{" + "0" * 34 + "}", "urn:uuid:" + "0" * 27])
def test_what_is_no_id_is_none(text: str) -> None:
    assert parse_id(text) is None


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    assert parse_id(text) is None or len(text) == 36
