"""Presence of a process that is alive but cannot report it, kept by another process.

Native code that holds the interpreter lock stops the heartbeat and the watchdog of its process
alike. That is no loss: the run goes on. So another process reports in its place, unless it is dead
or frozen: a prefork child's parent (:mod:`tasks.watchdog.children`), and for a worker that runs its
jobs itself a small process, which is this file as a script.

The worker writes a byte to that process for each report of its own. The pipe ends with the worker,
and the small process with the pipe. It reports for as long as a lease: a worker that hangs for
longer is silent, and the reaper takes its runs. Dying at any moment costs nothing: the next report
of either is as good, and a small process that was killed is replaced.

Imports nothing but what the interpreter has loaded anyway until a report is late.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

#: Pause between two looks.
LOOK_SECONDS = 0.5
#: A process is late after so long: it should have reported itself. Early enough for two tries
#: before the reaper calls it silent.
LATE_SECONDS = 3.0
#: How long to try to report, and the pause between two reports.
REPORT_SECONDS = 2.0
#: A small process that ended is replaced no more often than this.
RESTART_SECONDS = 30.0
#: What its worker's process group is sent: it ends with the worker, which may have to drain.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)
#: A process in one of these states is frozen or dead.
_NOT_RUNNING = (b"T", b"t", b"Z", b"X", b"x")


def is_running(pid: int, parent: int | None = None) -> bool:
    """Whether a process could run, neither dead nor frozen, and is the child of ``parent``."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent_pid = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return False
    return state not in _NOT_RUNNING and parent in (None, int(parent_pid))


def report_for(names: list[str], statement: str, arguments: dict[str, object]) -> None:
    """Report for these processes; if that fails, the next look tries again."""
    import traceback

    from models.store.errors import StateStoreUnavailable
    from tasks.watchdog.emergency_write import write_now

    try:
        write_now(arguments, [(statement, {"names": names})], REPORT_SECONDS)
    except StateStoreUnavailable:
        pass  # nobody can report meanwhile
    except Exception:  # noqa: BLE001 - whatever it is, the next report may succeed
        traceback.print_exc()


class PresenceKeeper:
    """The small process, as its worker sees it."""

    def __init__(
        self, name: str, lease_seconds: float, statement: str, arguments: dict[str, object]
    ) -> None:
        import json

        self._argv = [sys.executable, "-I", "-S", __file__, name, str(lease_seconds)]
        # Not in the arguments of the command, which everybody can read: there is a password.
        # Celery's command takes the project's folder out of the path again.
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
        told = {"path": [root, *sys.path], "statement": statement, "arguments": arguments}
        self._told = json.dumps(told).encode() + b"\n"
        self._pid = self._pipe = -1
        self._started = -RESTART_SECONDS

    def start(self) -> None:
        """Start it, or another one, but not in a loop. The worker does without if that fails."""
        if time.monotonic() - self._started < RESTART_SECONDS:
            return
        self._started = time.monotonic()
        self.stop()
        try:
            self._spawn()
        except OSError as error:
            os.write(2, f"nobody keeps the presence of this worker: {error}\n".encode())

    def _spawn(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            os.set_blocking(self._pipe, False)
            os.write(self._pipe, self._told)
            # Not with subprocess: gevent's would wait for it on a loop that may be blocked.
            self._pid = os.posix_spawn(
                self._argv[0],
                self._argv,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
                setsigmask=[*_IGNORED, signal.SIGUSR2],
            )
        finally:
            os.close(reading)

    def stop(self) -> None:
        """End it, and collect what is left of it."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        try:
            if self._pid > 0:
                os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            pass

    def note_report(self) -> None:
        """The worker has just reported."""
        try:
            os.write(self._pipe, b".")
        except BlockingIOError:
            pass  # it did not run for hours, and will read enough of them
        except OSError:
            self.start()


def keep_present(name: str, lease_seconds: float) -> None:
    """In the small process: report for its parent whenever that is late."""
    worker = os.getppid()
    told = sys.stdin.buffer.readline()
    reported = tried = time.monotonic()
    # Whatever the parent has forked may hold the pipe open.
    while told and os.getppid() == worker:
        if select.select([0], [], [], LOOK_SECONDS)[0]:
            if not os.read(0, 65536):
                return
            reported = time.monotonic()
        now = time.monotonic()
        late = LATE_SECONDS <= now - reported < lease_seconds
        if late and now - tried >= REPORT_SECONDS and is_running(worker):
            import json

            tried = now
            given = json.loads(told)
            sys.path[:] = given["path"]
            report_for([name], given["statement"], given["arguments"])


if __name__ == "__main__":
    keep_present(sys.argv[1], float(sys.argv[2]))
