"""docs/security-review.md: every test that it names exists, in the file that it names."""

from __future__ import annotations

import re

import pytest

from loadtest.attack.rounds import FAMILIES
from tests import ROOT

PAGE = (ROOT / "docs/security-review.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d", line)]
#: A file and the tests of it that follow.
NAMED = re.compile(r"`([a-z/_]+\.py)`|`(test_\w+)`")


def named_in(row: str) -> list[tuple[str, str]]:
    """Files and the names of tests in them."""
    found, file = [], ""
    for path, test in NAMED.findall(row):
        file = path or file
        if test:
            found.append((file, test))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_tests_that_exist(row: str) -> None:
    assert named_in(row)
    for file, test in named_in(row):
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}: {test}"


def test_every_point_has_its_row() -> None:
    numbers = [row.split("|")[1].strip() for row in ROWS]
    assert [number for number in numbers if number.isdigit()] == [str(n) for n in range(1, 14)]


def test_it_is_linked_and_so_is_the_attack() -> None:
    assert "docs/security-review.md" in (ROOT / "SECURITY.md").read_text()
    assert re.search(r"^attack:.*##", (ROOT / "Makefile").read_text(), re.M)


def test_rounds_that_it_names_exist() -> None:
    rounds = {one.name for rounds in FAMILIES.values() for one in rounds}
    named = {name for row in ROWS for name in re.findall(r'"([^"]+)"', row)}
    assert len(named) >= 5 and named <= rounds
