"""What ``make up`` takes from the environment."""

from __future__ import annotations

import pytest

from app.stack.options import BadOption, read_options
from app.stack.spec import PROJECT_ROOT


def test_defaults_are_those_of_the_contract() -> None:
    options = read_options({})
    assert (options.port, options.flower_port) == (8000, 5555)
    assert options.workers == {"short": 1, "medium": 1, "long": 1}
    assert (options.api_workers, options.schedulers, options.broker) == (2, 1, "auto")
    assert options.home == PROJECT_ROOT / ".run"


def test_absolute_home_stays_where_it_is(tmp_path: object) -> None:
    assert str(read_options({"FAIRLINE_HOME": str(tmp_path)}).home) == str(tmp_path)


def test_empty_variable_means_the_default() -> None:
    assert read_options({"PORT": "", "BROKER": ""}).port == 8000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "0"),
        ("PORT", "70000"),
        ("WORKERS_LONG", "-1"),
        ("BROKER", "kafka"),
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_variable(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        read_options({name: value})
