"""A start of PostgreSQL that takes longer than its limit, and one that never succeeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from app.stack import sequence
from app.stack.options import read_options
from app.stack.postgres import SETTINGS, EmbeddedPostgres
from app.stack.programs import ProgramTable
from app.stack.screen import Screen
from app.stack.sequence import StackServices, bring_up
from app.stack.services import running
from app.stack.spec import ProcessSpec, StackError
from app.stack.supervisor import Supervisor
from tests.integration.stack.conftest import pids

#: Archive recovery asks this command for its first file before anything else.
HOLD = "while [ -e {0} ]; do sleep 0.05; done; false"


class Watched(Screen):
    """A screen that calls a function with each of its lines."""

    def __init__(self, see: Callable[[str], None]) -> None:
        super().__init__(Console(quiet=True))
        self.see = see

    def line(self, text: str = "") -> None:
        self.see(text)


class Pretended(EmbeddedPostgres):
    """Another process that is taken for the server, and what it says to clients."""

    def __init__(self, home: Path, argv: tuple[str, ...], says: str) -> None:
        super().__init__(home)
        self.argv, self.says = argv, says

    def prepare(self) -> None:
        pass

    def processes(self) -> Sequence[ProcessSpec]:
        return [ProcessSpec("postgres", self.argv)]

    def is_ready(self) -> bool:
        return False

    def refusal(self) -> str | None:
        return self.says


def start(supervisor: Supervisor, postgres: EmbeddedPostgres, screen: Screen) -> None:
    """Up to the migrations, which are what ends the start."""
    services = StackServices(postgres, None, postgres.url(), "memory://")
    migrate = ProcessSpec("migrate", ("sh", "-c", "echo the migrations ran; false"))
    bring_up(supervisor, services, ProgramTable(migrate, [], []), read_options({}), screen)


def test_recovery_takes_as_long_as_it_takes(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "POSTGRES_SECONDS", 0.5, raising=False)
    home = supervisor.home.path
    hold = home / "postgres" / "hold"  # where the server's user may look
    small = {**SETTINGS, "shared_buffers": "16MB", "wal_level": "replica"}
    postgres = EmbeddedPostgres(home, {**small, "restore_command": HOLD.format(hold)})
    with running(postgres, home / "logs"):
        pass
    (postgres.data / "recovery.signal").touch()
    (postgres.data / "recovery.signal").chmod(0o644)
    told: list[tuple[str, list[int]]] = []

    def see(line: str) -> None:
        if "still starting" in line:
            told.append((line, pids(supervisor)))
        if len(told) == 2:
            hold.unlink(missing_ok=True)

    hold.touch()
    try:
        with pytest.raises(StackError, match="the migrations ran"):
            start(supervisor, postgres, Watched(see))
    finally:
        hold.unlink(missing_ok=True)
    assert len(told) >= 2, "it took several times its limit"
    assert {tuple(running) for _, running in told} == {tuple(pids(supervisor))}, "always the same"


def test_a_server_that_does_not_answer_has_its_limit(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "POSTGRES_SECONDS", 1.0)
    silent = Pretended(supervisor.home.path, ("sleep", "600"), "timeout expired")
    lines: list[str] = []
    with pytest.raises(StackError, match="postgres is not ready after 1 s"):
        start(supervisor, silent, Watched(lines.append))
    assert not [line for line in lines if "still" in line]


def test_a_server_that_keeps_dying_while_it_starts_ends_the_start(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "POSTGRES_SECONDS", 0.5)
    # Whatever lives that long was healthy: the count of deaths in a row begins again.
    monkeypatch.setattr("app.stack.supervisor.HEALTHY_SECONDS", 0.0)
    words = "FATAL:  the database system is starting up"
    broken = Pretended(supervisor.home.path, ("sleep", "0.2"), words)
    with pytest.raises(StackError, match="postgres is not ready"):
        start(supervisor, broken, Watched(lambda _: None))
    assert supervisor.slots[0].restarts >= sequence.HOPELESS
