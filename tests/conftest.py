"""What holds for all tests: the longest files come first.

Two processes share the files. One that begins its longest file last leaves the other idle.
"""

from __future__ import annotations

import pytest

#: The longest first; each takes half a minute and more.
LONGEST = (
    "test_lab.py",
    "test_kills.py",
    "test_stack.py",
    "test_failures.py",
    "test_drain.py",
    "test_connections.py",
    "test_autoscale.py",
    "test_outages.py",
    "test_bench_smoke.py",
    "test_stack_up.py",
    "test_state_machine.py",
    "test_runaways_green.py",
    "test_races.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
