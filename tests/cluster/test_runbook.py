"""docs/operations.md, typed section by section on a cluster, while applications come in.

Each command prints what is shown under it, nothing is missing after a section, and every
application that was accepted meanwhile was scored, once.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import nullcontext

import pytest

from app.stack.spec import PROJECT_ROOT
from loadtest.cluster.cluster import Cluster
from tests.cluster.use import accepted, await_score
from tests.support.documents import Example, blocks, differences, examples, script, section

#: On a machine that has other work each section may take many minutes.
pytestmark = pytest.mark.timeout(3600)

PAGE = "docs/operations.md"
TEXT = (PROJECT_ROOT / PAGE).read_text()
RESTORE = "Backup and restore"
#: In this order: a backup needs the archive that is switched on before it.
SECTIONS = (
    "What to watch",
    "PostgreSQL",
    RESTORE,
    "RabbitMQ",
    "etcd, and replacing a machine",
    "Fairline",
)
SECTION_SECONDS = 2400.0
BACK_SECONDS = 900.0


def typed(text: str) -> list[Example]:
    found = (block for block in blocks(PAGE, text) if block.language == "console")
    return [one for block in found for one in examples(block)]


FUNCTIONS = typed(TEXT.partition("\n## ")[0])


class Load:
    """Applications, a few a second, from the beginning of a section to its end."""

    def __init__(self, cluster: Cluster, title: str) -> None:
        self._cluster = cluster
        self._title = title
        self._accepted: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.3):
            number += 1
            candidate = f"{self._title} {number}"
            if found := accepted(self._cluster, candidate):
                self._accepted[candidate] = found

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Every one is scored, and there is one of each."""
        assert len(self._accepted) > 5
        for application in self._accepted.values():
            await_score(self._cluster, application)
        rows = self._cluster.health.sql(
            "SELECT candidate, count(*), min(id::text) FROM applications"
            f" WHERE starts_with(candidate, '{self._title} ') GROUP BY candidate",
            self._cluster.wait_for_leader(),
        )
        once = {name: found for name, count, found in rows if count == 1}
        assert self._accepted.items() <= once.items()


def test_every_section_with_commands_is_typed() -> None:
    titles = [line[3:] for line in TEXT.splitlines() if line.startswith("## ")]
    assert tuple(title for title in titles if typed(section(TEXT, title))) == SECTIONS


@pytest.mark.parametrize("title", SECTIONS)
def test_every_step_does_what_is_shown(cluster: Cluster, title: str) -> None:
    cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")
    lead_on_machine_1(cluster)
    load = Load(cluster, title)
    # A restore loses what was accepted after its moment, and the section shows that.
    with load if title != RESTORE else nullcontext():
        found = type_all(cluster, [*FUNCTIONS, *typed(section(TEXT, title))])
    assert not found, "\n\n".join(found)
    cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")
    if title != RESTORE:
        load.check()


def lead_on_machine_1(cluster: Cluster) -> None:
    """As the page says it is."""
    if (leader := cluster.wait_for_leader()) != 1:
        command = "cluster run 1 patronictl switchover fairline --candidate m1 --force"
        assert not type_all(cluster, [*FUNCTIONS, Example(command, ("…",))]), leader
        cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")


def type_all(cluster: Cluster, wanted: list[Example]) -> list[str]:
    """Commands that printed something else than what is shown, or failed."""
    port = {"localhost:8000": f"localhost:{cluster.layout.port}"}
    # A make within a make would tell its folder.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ("bash", "-c", script(wanted, port)),
        cwd=PROJECT_ROOT,
        env={**outer, "CLUSTER_HOME": str(cluster.layout.folder)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECTION_SECONDS,
        check=False,
    )
    found = differences(wanted, done.stdout)
    return found or ([f"ended with {done.returncode}: {done.stdout}"] if done.returncode else [])
