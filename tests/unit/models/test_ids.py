"""Ids sort by time and parse strictly."""

from __future__ import annotations

import os
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.jobs.ids import NUMBERS_AT_ONCE, _unused, cell_number, new_id, parse_id


def test_ids_are_unique_uuids_of_version_7_in_the_order_of_their_making() -> None:
    ids = [new_id() for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert all(uuid.UUID(one).version == 7 for one in ids)
    stamps = [one[:18] for one in ids]
    assert stamps == sorted(stamps)


@given(st.integers(1, 4095))
def test_ids_carry_the_number_of_their_cell(cell: int) -> None:
    ids = [new_id(cell=cell) for _ in range(20)]
    assert {cell_number(one) for one in ids} == {cell}
    assert all(uuid.UUID(one).version == 7 and parse_id(one) == one for one in ids)
    assert len({one[23:] for one in ids}) == 20, "the rest is random"


def test_ids_do_not_depend_on_the_seed_of_python_s_generator() -> None:
    def tails() -> list[str]:
        random.seed(1)
        return [new_id()[19:] for _ in range(NUMBERS_AT_ONCE + 1)]

    state = random.getstate()
    try:
        assert not set(tails()) & set(tails())
    finally:
        random.setstate(state)


def test_a_forked_process_makes_other_ids() -> None:
    while not _unused:  # there are numbers to share, unless it took the last one
        new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, "".join(new_id()[19:] for _ in range(50)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    size = len(text) // 50
    theirs = {text[place : place + size] for place in range(0, len(text), size)}
    ours = {new_id()[19:] for _ in range(2 * NUMBERS_AT_ONCE)}
    assert len(theirs) == 50 and not theirs & ours


@given(st.uuids())
def test_an_id_is_taken_in_any_case_and_made_canonical(value: uuid.UUID) -> None:
    assert parse_id(str(value).upper()) == str(value)


@pytest.mark.parametrize("text", ["", "1", "x" * 36, "{" + "0" * 34 + "}", "urn:uuid:" + "0" * 27])
def test_what_is_no_id_is_none(text: str) -> None:
    assert parse_id(text) is None


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    assert parse_id(text) is None or len(text) == 36
