"""The supervisor with small real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.follower import Follower
from app.stack.home import Home
from app.stack.identity import ProcessIdentity, identity_of, is_alive, stat_of, wait_for_exit
from app.stack.leftovers import STACK_VARIABLE, Started, clear_leftovers, note_started, noted
from app.stack.options import read_options
from app.stack.spec import ProcessSpec, StopStep
from app.stack.supervisor import Program, StopRequested, Supervisor
from tests.integration.stack.conftest import SLEEP, pids, wait

#: A process with a child of its own, whose pid it writes to the log.
PARENT = (
    sys.executable,
    "-c",
    "import subprocess, time; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True);"
    "time.sleep(600)",
)
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True);"
    "time.sleep(600)",
)


def program(name: str, argv: tuple[str, ...], rank: int = 0, stop_seconds: float = 5.0) -> Program:
    stop = (StopStep(signal.SIGTERM, stop_seconds),)
    return Program(name, lambda n: ProcessSpec(f"{name}-{n}", argv, stop=stop), rank, scalable=True)


def test_killed_process_is_replaced_within_five_seconds(supervisor: Supervisor) -> None:
    supervisor.add(program("worker", SLEEP))
    supervisor.tick()
    [first] = pids(supervisor)
    os.kill(first, signal.SIGKILL)
    took = wait(supervisor, lambda: pids(supervisor) not in ([first], []))
    assert took < 5


def test_children_of_a_killed_process_die_with_it(supervisor: Supervisor) -> None:
    supervisor.add(program("api", PARENT))
    log = supervisor.home.log("api-1")
    wait(supervisor, lambda: log.exists() and bool(log.read_text()))
    child = identity_of(int(log.read_text()))
    assert child
    os.kill(pids(supervisor)[0], signal.SIGKILL)
    wait(supervisor, lambda: not is_alive(child))


def test_process_that_keeps_dying_is_started_ever_less_often(supervisor: Supervisor) -> None:
    supervisor.add(program("broken", ("false",)))
    wait(supervisor, lambda: supervisor.slots[0].deaths_in_a_row >= 3)
    assert supervisor.slots[0].due_at - time.monotonic() > 0.5


def test_missing_command_is_tried_again_rather_than_raised(supervisor: Supervisor) -> None:
    said: list[str] = []
    supervisor.report = said.append
    supervisor.add(program("absent", ("/nonexistent/command",)))
    wait(supervisor, lambda: supervisor.slots[0].restarts >= 2)
    assert "cannot start" in said[0]


def test_log_of_a_task_is_that_of_its_last_run(supervisor: Supervisor) -> None:
    for word in ("first", "second"):
        assert supervisor.run_task(ProcessSpec("task", ("echo", word)), 10, lambda _: None)
    assert supervisor.home.log("task").read_text() == "second\n"


def test_scaling_adds_and_drains_processes_at_run_time(supervisor: Supervisor) -> None:
    supervisor.add(program("worker", SLEEP))
    supervisor.tick()
    [oldest] = pids(supervisor)
    supervisor.scale("worker", 3)
    wait(supervisor, lambda: len(pids(supervisor)) == 3)
    supervisor.scale("worker", 1)
    wait(supervisor, lambda: pids(supervisor) == [oldest])


def test_pool_scaled_to_nothing_can_grow_again(supervisor: Supervisor) -> None:
    supervisor.add(program("worker", SLEEP), 0)
    supervisor.scale("worker", 2)
    wait(supervisor, lambda: len(pids(supervisor)) == 2)


def busy(supervisor: Supervisor, seconds: float) -> None:
    """Two processes that take so long to stop, of a patient program with hasty steps."""
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep({seconds}), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)"
    )
    steps = (StopStep(signal.SIGTERM, 0.1),)
    supervisor.add(
        Program(
            "worker",
            lambda n: ProcessSpec(
                f"worker-{n}", (sys.executable, "-c", code), stop=steps, drain_seconds=60.0
            ),
            0,
            scalable=True,
        ),
        2,
    )
    logs = [supervisor.home.log(f"worker-{n}") for n in (1, 2)]
    wait(supervisor, lambda: all(log.exists() and "up" in log.read_text() for log in logs))


def test_process_that_is_one_too_many_may_finish_what_it_does(supervisor: Supervisor) -> None:
    said: list[str] = []
    supervisor.report = said.append
    busy(supervisor, 1.0)
    began = time.monotonic()
    supervisor.scale("worker", 1)
    assert supervisor.count("worker") == 1
    wait(supervisor, lambda: len(pids(supervisor)) == 1)
    took = time.monotonic() - began
    assert took > 0.9, "it was not to be killed after a tenth of a second"
    assert not said
    supervisor.scale("worker", 2)
    wait(supervisor, lambda: len(pids(supervisor)) == 2)


def test_stack_that_stops_has_no_patience(supervisor: Supervisor) -> None:
    busy(supervisor, 60.0)
    supervisor.scale("worker", 1)
    supervisor.tick()
    started = time.monotonic()
    supervisor.stop_all()
    assert time.monotonic() - started < 15
    with pytest.raises(ValueError, match="stopping"):
        supervisor.scale("worker", 3)


def test_supervisor_follows_the_autoscaler(supervisor: Supervisor) -> None:
    options = read_options({"AUTOSCALE": "1", "SLICES": "medium.free=1"})
    supervisor.add(program("worker-medium", SLEEP), 1)
    supervisor.add(program("worker-medium.free", SLEEP), 1)
    follower = Follower(supervisor, options, supervisor.home)

    def commands() -> dict[str, str]:
        return {slot.spec.name: " ".join(slot.spec.argv) for slot in supervisor.slots}

    said: list[str] = []
    supervisor.report = said.append
    why = dict.fromkeys(("medium", "long", "gone"), "a burst")
    follower.follow({"medium": 3, "long": 2, "gone": 9}, {"medium.reserved.acme": 2}, why)
    assert said[0] == "worker-medium: 3 instead of 1: a burst"
    assert set(commands()) == {
        *("worker-medium-1", "worker-medium-2", "worker-medium-3"),
        *("worker-medium.free-1", "worker-medium.reserved.acme-1"),
    }
    assert " -c 2 -Q medium.reserved.acme " in commands()["worker-medium.reserved.acme-1"]
    follower.follow({"medium": 1}, {"medium.reserved.acme": 4, "medium.free": 9}, why)
    assert " -c 4 -Q medium.reserved.acme " in commands()["worker-medium.reserved.acme-1"]
    follower.follow({"medium": 1}, {}, why)
    assert set(commands()) == {"worker-medium-1", "worker-medium.free-1"}
    assert "worker-medium.reserved.acme" not in supervisor.programs


def test_unknown_program_cannot_be_scaled(supervisor: Supervisor) -> None:
    with pytest.raises(ValueError, match="'postgres' cannot be scaled"):
        supervisor.scale("postgres", 2)


def test_ranks_stop_one_after_the_other(supervisor: Supervisor) -> None:
    loud = (
        "import signal,time,sys;signal.signal(signal.SIGTERM,lambda *_:(time.sleep(.3),sys.exit()))"
    )
    slow = (sys.executable, "-c", f"{loud};print('up',flush=True);time.sleep(600)")
    supervisor.add(program("first", slow, rank=0))
    supervisor.add(program("second", SLEEP, rank=1))
    log = supervisor.home.log("first-1")
    wait(supervisor, lambda: log.exists() and "up" in log.read_text())
    seen: list[bool] = []

    def watch(seconds: float) -> None:
        names = {slot.spec.name for slot in supervisor.slots}
        seen.append("second-1" in names)
        if "first-1" in names:
            assert "second-1" in names
        time.sleep(seconds)

    supervisor.pause = watch
    supervisor.stop_all()
    assert any(seen)
    assert supervisor.slots == []


def test_process_that_ignores_the_request_is_killed_in_time(supervisor: Supervisor) -> None:
    supervisor.add(program("deaf", STUBBORN, stop_seconds=0.3))
    log = supervisor.home.log("deaf-1")
    wait(supervisor, lambda: log.exists() and "deaf" in log.read_text())
    started = time.monotonic()
    supervisor.stop_all()
    assert time.monotonic() - started < 15


def test_second_stop_request_does_not_wait(supervisor: Supervisor) -> None:
    supervisor.add(program("deaf", STUBBORN, stop_seconds=60))
    log = supervisor.home.log("deaf-1")
    wait(supervisor, lambda: log.exists() and "deaf" in log.read_text())
    supervisor.request_stop()
    with pytest.raises(StopRequested):
        supervisor.wait(lambda: False)
    supervisor.request_stop()
    started = time.monotonic()
    supervisor.stop_all()
    assert time.monotonic() - started < 15


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP, start_new_session=True) as process:
        yield process
        process.kill()


def test_reused_pid_is_never_killed(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    identity = identity_of(stranger.pid)
    assert identity
    home, here = Home(tmp_path), str(Path.cwd())
    note_started(
        home,
        [
            Started(stranger.pid, identity.started_ticks - 1, identity.boot, "api", here),
            Started(stranger.pid, identity.started_ticks, "another boot", "flower", here),
        ],
    )
    assert clear_leftovers(home, grace_seconds=0.1) == 0
    assert is_alive(identity)


def test_noted_process_and_its_session_are_cleared(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with subprocess.Popen(PARENT, start_new_session=True, stdout=subprocess.PIPE) as leader:
        assert leader.stdout
        child = identity_of(int(leader.stdout.readline()))
        identity = identity_of(leader.pid)
        assert child
        assert identity
        note = Started(leader.pid, identity.started_ticks, identity.boot, "api", str(Path.cwd()))
        note_started(home, [note])
        leader.kill()
        leader.wait()
        assert clear_leftovers(home) == 1
    assert not is_alive(child)


def test_process_with_the_stacks_id_is_cleared_without_any_note(tmp_path: Path) -> None:
    home = Home(tmp_path)
    variables = {**os.environ, STACK_VARIABLE: home.stack_id()}
    argv = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")
    with subprocess.Popen(
        argv, start_new_session=True, env=variables, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()  # before its exec it has the variables of this process
        assert clear_leftovers(home) == 1
        assert process.wait(15) == -signal.SIGTERM


def test_a_process_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "open('/proc/self/comm', 'wb').write(b'\\xff) \\xfe')\n"
        "print(flush=True)\n"
        "time.sleep(600)"
    )
    words = (sys.executable, "-c", code)
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            found = stat_of(process.pid)
            assert found and (found.parent, found.session) == (os.getpid(), process.pid)
            assert clear_leftovers(Home(tmp_path), grace_seconds=0.1) == 0
        finally:
            process.kill()


def test_a_long_task_is_waited_for_and_told_of(supervisor: Supervisor, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"until [ -e {go} ]; do sleep 0.05; done; echo done"
    told: list[float] = []

    def still_runs(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 2:
            go.touch()

    assert supervisor.run_task(ProcessSpec("task", ("sh", "-c", waits)), 0.3, still_runs)
    assert supervisor.home.log("task").read_text() == "done\n"
    assert told == sorted(told) and told[0] >= 0.3


def test_identity_of_a_dead_process_is_none() -> None:
    with subprocess.Popen(("true",)) as process:
        process.wait()
    assert identity_of(process.pid) is None
    assert not is_alive(ProcessIdentity(process.pid, 0, ""))
    assert stat_of(os.getpid())


def test_home_that_cannot_be_written_is_reported_once_and_ends_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    supervisor.report = said.append
    with monkeypatch.context() as patched:
        patched.setattr("app.stack.supervisor.note_started", full)
        patched.setattr(Home, "rotate_logs", full)
        supervisor.add(program("worker", SLEEP), 2)
        for _ in range(3):
            supervisor.tick()
        assert len(pids(supervisor)) == 2
        assert [line.partition(":")[0] for line in said] == [
            "cannot rotate the logs",
            "cannot note which processes run",
        ]
    supervisor.tick()
    assert {one.pid for one in noted(supervisor.home)} == set(pids(supervisor))


def test_log_that_cannot_be_copied_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(_: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    home = Home(tmp_path)
    home.prepare()
    home.log("api").write_text("a line\n")
    monkeypatch.setattr("app.stack.home.shutil.copyfile", half)
    with pytest.raises(OSError, match="No space"):
        home.rotate_logs(max_bytes=1)
    assert home.log("api").read_text() == "a line\n"
    assert not home.log("api").with_suffix(".log.1").exists()


def test_process_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from app.stack.spawn import spawn\n"
        "from app.stack.spec import ProcessSpec\n"
        f"deaf = ProcessSpec('deaf', {STUBBORN!r})\n"
        f"print(spawn(deaf, {{}}, Path({str(tmp_path / 'log')!r})).pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = identity_of(int(parent.stdout.readline()))
        assert child
        while "deaf" not in (tmp_path / "log").read_text():
            time.sleep(0.02)
        parent.kill()
    assert wait_for_exit([child], seconds=15.0) == [], "it ignores requests to end"
