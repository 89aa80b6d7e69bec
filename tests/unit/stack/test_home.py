"""The home of a stack: whose it is, what a copy of it knows, and who can hold its lock."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from app.stack.__main__ import running_supervisor
from app.stack.home import Home, socket_folder
from app.stack.identity import identity_of
from app.stack.leftovers import Started, find_leftovers, note_started, noted
from app.stack.spec import StackError

NOBODY = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose records name a process that lives."""
    one = Home(tmp_path / "home")
    one.prepare()
    with subprocess.Popen(("sleep", "600"), start_new_session=True) as process:
        lives = identity_of(process.pid)
        assert lives
        one.supervisor_file.write_text(json.dumps(asdict(lives)))
        note = Started(lives.pid, lives.started_ticks, lives.boot, "api", str(Path.cwd()))
        note_started(one, [note])
        try:
            yield one
        finally:
            process.kill()


def copy_of(home: Home) -> Home:
    folder = home.path.with_name("copy")
    shutil.copytree(home.path, folder, copy_function=shutil.copy2)
    return Home(folder)


def test_a_copied_home_knows_no_process_of_the_original(home: Home) -> None:
    copy = copy_of(home)
    assert running_supervisor(copy) is None
    assert find_leftovers(copy) == [] and noted(copy) == []
    assert copy.stack_id() != home.stack_id()
    assert copy.stack_id() == Home(copy.path).stack_id()
    assert find_leftovers(home) == [running_supervisor(home)], "the original keeps its own"


def test_a_copy_of_hard_links_leaves_the_name_of_the_original(home: Home) -> None:
    before = home.stack_id()
    folder = home.path.with_name("copy")
    shutil.copytree(home.path, folder, copy_function=os.link)
    with home.lock():
        assert Home(folder).stack_id() != before
    assert home.stack_id() == before


def test_a_name_of_an_earlier_version_stays_and_is_tied_to_its_place(home: Home) -> None:
    (home.path / "stack-id").write_text("0a1b2c3d")
    assert home.stack_id() == "0a1b2c3d"
    assert running_supervisor(home)
    assert copy_of(home).stack_id() != "0a1b2c3d"
    assert home.stack_id() == "0a1b2c3d"


def test_a_home_that_is_moved_or_seen_elsewhere_while_it_runs_stays_the_same(home: Home) -> None:
    before = home.stack_id()
    link = home.path.with_name("link")
    link.symlink_to(home.path)
    assert Home(link).stack_id() == before
    with home.lock():
        moved = Home(home.path.rename(home.path.with_name("moved")))
        assert moved.stack_id() == before
        assert running_supervisor(moved)
    assert moved.stack_id() == before, "RabbitMQ's data has the name in its path"


@only_root
def test_a_home_of_another_user_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for owner, name in ((NOBODY, "nobody"), (54321, "user 54321")):
        folder = tmp_path / str(owner)
        folder.mkdir()
        os.chown(folder, owner, owner)
        Home(folder).prepare()  # a volume is somebody else's, and may be used
        os.chown(folder / "logs", owner, owner)
        before = sorted(folder.rglob("*"))
        with pytest.raises(StackError, match=f"belongs to {name}: run this as {name}"):
            Home(folder).prepare()
        assert sorted(folder.rglob("*")) == before


def test_nobody_else_can_open_the_lock(home: Home) -> None:
    lock = home.path / "lock"
    with home.lock(), pytest.raises(StackError, match="already running"):
        home.lock()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.chmod(0o644)  # as an earlier version made it
    with home.lock():
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose path is too long for sockets; the spare ones are not in /tmp."""
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr("app.stack.home.SPARE_SOCKETS", spare)
    return tmp_path / ("d" * 110)


def test_a_spare_folder_that_others_can_enter_is_refused_by_name(deep: Path) -> None:
    folder = socket_folder(deep, "control.sock")
    assert socket_folder(deep, "control.sock") == folder
    folder.chmod(0o750)
    with pytest.raises(StackError, match=f"{folder} can be entered by others"):
        socket_folder(deep, "control.sock")
    folder.rmdir()
    folder.touch(mode=0o700)
    with pytest.raises(StackError, match=f"{folder} is no folder"):
        socket_folder(deep, "control.sock")
    folder.unlink()
    folder.symlink_to(deep.parent, target_is_directory=True)
    with pytest.raises(StackError, match=f"{folder} is no folder"):
        socket_folder(deep, "control.sock")


@only_root
def test_a_spare_folder_of_another_user_is_refused_also_by_root(deep: Path) -> None:
    folder = socket_folder(deep, "control.sock")
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(StackError, match=f"{folder} belongs to nobody"):
        socket_folder(deep, "control.sock")
    assert socket_folder(deep, "control.sock", account=NOBODY) == folder
