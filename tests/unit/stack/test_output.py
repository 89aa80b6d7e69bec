"""What the commands of a stack print: for a shell, and for a terminal that was stopped."""

from __future__ import annotations

import os
import pty
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from app.stack.__main__ import show
from app.stack.home import Home
from app.stack.screen import KEPT_LINES, Screen


def test_only_what_a_shell_takes_for_a_name_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("FAIRLINE_X;touch y", "FAIRLINE_X Y", "FAIRLINE_$(z)", "FAIRLINE_X\n", "FAIRLINE_A1")
    answer = {"env": dict.fromkeys(names, "two words")}
    monkeypatch.setattr("app.stack.__main__.ask", lambda *_: answer)
    assert show(Home(tmp_path), {"command": "env"}, Screen()) == 0
    assert capsys.readouterr().out == "export FAIRLINE_A1='two words'\n"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: who looks at it, and who writes to it."""
    looking, writing = pty.openpty()
    yield looking, writing
    termios.tcflow(writing, termios.TCOON)  # whoever waits goes on
    os.close(looking)
    os.close(writing)


def test_a_terminal_that_is_stopped_keeps_nobody_waiting(terminal: tuple[int, int]) -> None:
    looking, writing = terminal
    with open(os.dup(writing), "w") as file:
        screen = Screen(Console(file=file, highlight=False, soft_wrap=True))
        termios.tcflow(writing, termios.TCOOFF)  # as Ctrl-S does

        def happen() -> None:
            for number in range(KEPT_LINES + 1):
                screen.event(f"event {number};")

        happening = threading.Thread(target=happen, daemon=True)
        happening.start()
        happening.join(20)
        waits = happening.is_alive()
        termios.tcflow(writing, termios.TCOON)

        def end() -> None:
            happening.join()
            screen.event("the last;")

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        text = ""
        while "the last;" not in text:
            text += os.read(looking, 4096).decode()
        ending.join()
    assert not waits
    assert "event 2;" in text and f"event {KEPT_LINES};" in text
    assert "event 0;" not in text and "event 1;" not in text, "the oldest go first"
