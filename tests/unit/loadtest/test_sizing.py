"""Sizes by jobs per day, and the document that is made of them."""

from __future__ import annotations

import ast
import inspect
import itertools
import re

import pytest

from loadtest.sizing import model
from loadtest.sizing.__main__ import DOCUMENT
from loadtest.sizing.document import SIZES, document
from loadtest.sizing.inputs import ASSUMED, GROUPED_MS, INPUTS, SINGLE_MS, STORED_BYTES
from loadtest.sizing.model import Size
from tests import ROOT


def test_the_document_is_what_the_inputs_give() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m loadtest.sizing --docs"


def test_every_input_names_a_command_that_exists_or_is_assumed() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for one in INPUTS:
        if ASSUMED in one.source:
            continue
        command = one.source.strip("`")
        if target := re.fullmatch(r"make ([\w-]+)", command):
            assert re.search(rf"^{target[1].split('-')[0]}[\w%-]*:", makefile, re.M), command
        else:
            module = command.removeprefix("python -m ").replace(".", "/")
            assert (ROOT / f"{module}.py").exists(), command


def test_the_model_has_no_figures_of_its_own_but_the_calendars() -> None:
    made = [
        node for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.Assign)
    ]
    assert [ast.unparse(one) for one in made] == ["DAY_SECONDS, MONTH_HOURS = (86400, 720)"]


def test_more_jobs_need_more_of_everything_and_cost_less_each() -> None:
    sizes = [Size(jobs) for jobs in SIZES.values()]
    for smaller, larger in itertools.pairwise(sizes):
        assert larger.engine_cores > smaller.engine_cores
        assert larger.workers("long") >= smaller.workers("long")
        each = [
            sum(size.money(STORED_BYTES).values()) / size.jobs_per_day for size in (smaller, larger)
        ]
        assert each[1] < each[0]


def test_two_billion_per_day_are_the_peak_and_the_cells_of_the_simulation() -> None:
    size = Size(2e9)
    assert size.peak == pytest.approx(150_000)
    assert size.cells == 30


def test_a_cost_is_that_of_a_measurement_at_its_rate_and_in_between_otherwise() -> None:
    for part, single in SINGLE_MS.items():
        assert Size(1e3).between(single, GROUPED_MS[part]) == single
        assert Size(2e9).between(single, GROUPED_MS[part]) == pytest.approx(GROUPED_MS[part])
        assert GROUPED_MS[part] < Size(1e7).between(single, GROUPED_MS[part]) < single
