"""What holds for all tests: who runs them where, and the longest first.

Some processes share the files. One that begins its longest file last leaves the other idle, and
a stack that two of them need is started twice, which costs more than many a test.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.stolen_time import STAT, StolenTime

# Jobs of tests are of the types to try things out with; for every process that a test starts.
os.environ.setdefault("FAIRLINE_DEMO_TYPES", "true")

# How long an example takes says more about the machine than about the code. EXAMPLES=1000 searches
# longer than a run of all tests has time for.
settings.register_profile(
    "fairline", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "40"))
)
settings.load_profile("fairline")

#: A file system in memory: databases are made and dropped in a third of the time there.
MEMORY = Path("/dev/shm")
#: What has to be free of it, and of the machine's memory besides.
MEMORY_BYTES = 8 * 2**30
#: Tests whose processes have a /dev/shm of their own.
ON_DISK = tuple(Path(__file__).parent / name for name in ("cluster", "lab"))
#: Files of tests/acceptance that use the same stack: one process runs them all.
TOGETHER = {
    "shared_stack": (
        *("test_stack.py", "test_drain.py", "test_connections.py", "test_outages.py"),
        *("test_scheduler_loss.py", "test_schedules.py", "test_event_streams.py"),
        "test_frozen_worker.py",
    ),
    "platform_stack": (
        # First: nobody else is on the leaderboard or in the queue.
        *("test_readme.py", "test_failures.py", "test_quota.py", "test_measured_pools.py"),
        *("test_writing_jobs.py", "browser"),
    ),
}
GROUPS = {f"acceptance/{name}": group for group, names in TOGETHER.items() for name in names}
#: The longest first, a quarter of a minute at least; then everything else, as it comes.
LONGEST = (
    *(f"acceptance/{name}" for name in TOGETHER["shared_stack"]),
    *(f"acceptance/{name}" for name in TOGETHER["platform_stack"]),
    "acceptance/test_autoscale.py",
    *("acceptance/test_full_disk.py", "broker/test_slow_confirms.py", "broker/test_lost_queues.py"),
    *("api/test_schemathesis.py", "models/test_races.py"),
    *("api/test_outage.py", "stack/test_up.py", "models/test_state_machine.py"),
    *("tasks/test_runaways_green.py", "telemetry/test_telemetry.py"),
)


def pairs(path: str) -> list[str]:
    """Each part of a path with its folder."""
    return ["/".join(pair) for pair in pairwise(path.split("/"))]


class ByStack(LoadScopeScheduling):
    """The files of a stack go to one process, and so does every other file."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((GROUPS[pair] for pair in pairs(path) if pair in GROUPS), path)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByStack | None:
    """In place of the one of ``--dist loadfile``."""
    return ByStack(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return min(places.get(pair, len(LONGEST)) for pair in pairs(item.path.as_posix()))

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """In CI, waits while the host takes the processors; a temporary folder of this run alone, in
    memory if it fits.

    pytest closes the folder that its runs share to other users each time one starts, and the
    embedded PostgreSQL of another run, which has a user account of its own, loses its files.
    """
    if os.environ.get("CI") and STAT.exists():
        config.pluginmanager.register(StolenTime())
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        asked = [Path(word.partition("::")[0]).resolve() for word in config.args]
        if not any(related(path, folder) for path in asked for folder in ON_DISK) and (
            has_room(MEMORY)
        ):
            os.environ.setdefault("TMPDIR", str(MEMORY))  # for all processes of the tests
            tempfile.tempdir = None  # it may have been looked up already
        config.option.basetemp = Path(tempfile.mkdtemp(prefix="fairline-tests-"))
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


def related(one: Path, other: Path) -> bool:
    """Whether one of them is in the other."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def has_room(folder: Path) -> bool:
    """Whether everything that tests write fits there, and programs may be run from it."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available - MEMORY_BYTES)
    return free >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC
