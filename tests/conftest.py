"""What holds for all tests: who runs them where, and the longest first.

Two processes share the files. One that begins its longest file last leaves the other idle, and
a stack that two of them need is started twice, which costs more than many a test.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Files that use the same stack, whole folders by their name: one process runs them all.
TOGETHER = {
    "shared_stack": (
        *("test_stack.py", "test_drain.py", "test_connections.py", "test_outages.py"),
        *("test_scheduler_loss.py", "test_schedules.py", "test_event_streams.py"),
        "test_frozen_worker.py",
    ),
    "platform_stack": (
        *("test_failures.py", "test_quota.py", "test_measured_pools.py", "test_writing_jobs.py"),
        "browser",
    ),
}
GROUPS = {name: group for group, names in TOGETHER.items() for name in names}
#: The longest first, a quarter of a minute at least; then everything else, as it comes.
LONGEST = (
    *TOGETHER["shared_stack"],
    "test_lab.py",
    "test_kills.py",
    *TOGETHER["platform_stack"],
    "test_compose.py",
    "test_autoscale.py",
    "test_bench_smoke.py",
    "test_schemathesis.py",
    "test_races.py",
    "test_api_outage.py",
    "test_stack_up.py",
    "test_state_machine.py",
    "test_runaways_green.py",
    "test_telemetry.py",
)


class ByStack(LoadScopeScheduling):
    """The files of a stack go to one process, and so does every other file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((GROUPS[part] for part in path.split("/") if part in GROUPS), path)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByStack | None:
    """In place of the one of ``--dist loadfile``."""
    return ByStack(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return min(places.get(part, len(LONGEST)) for part in item.path.parts[-2:])

    items.sort(key=place)
