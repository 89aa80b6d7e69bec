"""Supervisor: keeps the processes of a stack alive, in one thread and one loop.

A process that dies is restarted, with growing delays if it keeps dying; one that is alive but does
not serve its clients is killed first. Stopping the stack goes rank by rank, each process through
its stop steps and finally SIGKILL, so it always ends. If the supervisor itself is killed,
`app.stack.leftovers` clears what is left.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.stack.home import Home
from app.stack.leftovers import Started, note_started
from app.stack.spawn import Child, Fork, kill_orphans, reap_orphans, spawn
from app.stack.spec import ProcessSpec

TICK_SECONDS = 0.1
#: While all processes run: the death of one ends the pause.
STEADY_SECONDS = 1.0
ROTATE_SECONDS = 10.0
#: What cannot be written is not reported more often than this.
REPORT_SECONDS = 60.0
#: A process that lived this long was healthy: its death starts a new count.
HEALTHY_SECONDS = 10.0
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0
#: How often a process that was ready is asked whether it still is.
CHECK_SECONDS = 5.0
#: A process that was not made ready by several starts, in all for this many times what one may
#: take, starts without its data.
UNREADY_TIMES_BEFORE_RESET = 2


class SlotState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Program:
    """One row of the process table: a kind of process and how to make the n-th of it."""

    name: str
    make: Callable[[int], ProcessSpec]
    #: Lower ranks stop first; a rank stops when the one before is gone.
    stop_rank: int
    scalable: bool = False


@dataclass(slots=True)
class Slot:
    """The place of one process, which is replaced when it dies."""

    program: Program
    number: int
    spec: ProcessSpec
    state: SlotState = SlotState.WAITING
    due_at: float = 0.0
    child: Child | None = None
    deaths_in_a_row: int = 0
    restarts: int = 0
    stop_step: int = 0
    #: It may finish what it runs before it stops.
    draining: bool = False
    #: When it was last ready, or started; when to ask next; and when the first of the starts was
    #: that did not make it ready, 0 if it is.
    ready_at: float = 0.0
    check_at: float = 0.0
    unready_since: float = 0.0
    #: Starts without its data that did not make it ready either.
    resets_in_a_row: int = 0

    @property
    def most_unready_seconds(self) -> float:
        """How long it may take to be ready: on a machine that is too busy, longer each time."""
        return self.spec.unready_seconds * (1 << min(self.resets_in_a_row, 4))

    def stop_seconds(self, now: float) -> float:
        """How long it has before it is killed, if it is stopping."""
        later = self.spec.stop[self.stop_step :]
        return max(0.0, self.due_at - now) + sum(step.seconds for step in later)


class StopRequested(Exception):
    """The stack was asked to stop."""


@dataclass
class Supervisor:
    home: Home
    environment: Mapping[str, str]
    #: Called with a line about each death and replacement.
    report: Callable[[str], None] = lambda _: None
    #: Waits for up to some seconds, less if something happened; serves control requests.
    pause: Callable[[float], None] = time.sleep
    #: Whether every child of this process belongs to the stack: see `adopt_orphans`.
    owns_children: bool = False
    #: Starts a process without its imports, where that is possible.
    fork: Fork = lambda *_: None
    programs: dict[str, Program] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    tasks: list[Child] = field(default_factory=list)
    stop_requests: int = 0
    stopping: bool = False
    _rotate_at: float = 0.0
    #: Processes whose record is written; and what could not be written, when that was reported.
    _noted: list[int] = field(default_factory=list)
    _reported: dict[str, float] = field(default_factory=dict)

    def add(self, program: Program, count: int = 1) -> None:
        """Start that many processes of the program in the next tick."""
        self.programs[program.name] = program
        used = {slot.number for slot in self.slots if slot.program.name == program.name}
        free = (number for number in range(1, count + len(used) + 1) if number not in used)
        for number, _ in zip(free, range(count), strict=False):
            self.slots.append(Slot(program, number, program.make(number)))

    def scale(self, name: str, count: int) -> None:
        """Run `count` processes of the program, draining the newest ones if there are more."""
        scalable = sorted(program.name for program in self.programs.values() if program.scalable)
        if name not in scalable:
            raise ValueError(f"{name!r} cannot be scaled; these can: {', '.join(scalable)}")
        if self.stopping:
            raise ValueError("the stack is stopping")
        if count < 0:
            raise ValueError("the number of processes cannot be negative")
        active = self._active(name)
        for slot in active[count:]:
            self._begin_stop(slot, drain=True)
        self.add(self.programs[name], count - len(active))

    def drop(self, name: str) -> None:
        """Drain the processes of a program and remove it."""
        self.scale(name, 0)
        del self.programs[name]

    def count(self, name: str) -> int:
        """Processes of a program that are not being stopped."""
        return len(self._active(name))

    def _active(self, name: str) -> list[Slot]:
        slots = [slot for slot in self.slots if slot.program.name == name]
        active = [slot for slot in slots if slot.state != SlotState.STOPPING]
        return sorted(active, key=lambda slot: slot.number)

    def request_stop(self) -> None:
        """Make the next `wait` raise `StopRequested`; safe in a signal handler."""
        self.stop_requests += 1

    def wait(
        self,
        until: Callable[[], bool],
        seconds: float = float("inf"),
        every: float = TICK_SECONDS,
    ) -> bool:
        """Supervise until the condition holds; false if it does not in that time.

        ``every``: the longest pause while all processes run.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.tick()
            if self.stop_requests:
                raise StopRequested
            if until():
                return True
            if time.monotonic() > deadline:
                return False
            steady = all(slot.state == SlotState.RUNNING for slot in self.slots)
            self.pause(every if steady else TICK_SECONDS)

    def run_task(
        self, spec: ProcessSpec, every: float, still_runs: Callable[[float], None]
    ) -> bool:
        """Run a command to its end; true if it succeeded. ``still_runs`` is told for how long it
        runs, each time after so many seconds."""
        spec.before_start()
        log = self.home.log(spec.name)
        log.unlink(missing_ok=True)  # if it fails, nobody takes an older failure for this one
        task = spawn(spec, self.environment, log, self.fork)
        self.tasks.append(task)
        try:
            while not self.wait(lambda: task.poll() is not None, every):
                still_runs(time.monotonic() - task.started_at)
            return task.poll() == 0
        finally:
            task.stop()
            self.tasks.remove(task)

    def tick(self) -> None:
        """One turn: notice deaths, start what is due, continue what is stopping."""
        now = time.monotonic()
        for slot in list(self.slots):
            if slot.child and (status := slot.child.poll()) is not None:
                self._notice_death(slot, status, now)
            if slot.state == SlotState.WAITING and slot.due_at <= now:
                self._start(slot)
            elif slot.state == SlotState.STOPPING and slot.due_at <= now:
                self._next_stop_step(slot, now)
            elif slot.state == SlotState.RUNNING and slot.check_at <= now:
                self._check_ready(slot)
        if self.owns_children:
            reap_orphans({*self._pids(), *(task.pid for task in self.tasks)})
        if self._rotate_at <= now:
            self._rotate_at = now + ROTATE_SECONDS
            self._write("rotate the logs", self.home.rotate_logs)
        self._note_started()

    def stop_all(self) -> None:
        """Stop everything rank by rank; a second stop request meanwhile kills instead."""
        self.stopping = True
        for rank in sorted({slot.program.stop_rank for slot in self.slots}):
            members = [slot for slot in self.slots if slot.program.stop_rank == rank]
            for slot in members:
                self._begin_stop(slot)
            while any(slot in self.slots for slot in members):
                if self.stop_requests > 1:
                    for slot in members:
                        if slot.child:
                            slot.child.kill()
                self.tick()
                self.pause(0.05)
        if self.owns_children:
            kill_orphans()
        self._note_started()

    def _note_started(self) -> None:
        """Note which processes run, unless that is noted already."""
        pids = self._pids()
        started = [Started.of(slot.child) for slot in self.slots if slot.child]
        if pids != self._noted and self._write(
            "note which processes run", lambda: note_started(self.home, started)
        ):
            self._noted = pids

    def _write(self, what: str, write: Callable[[], None]) -> bool:
        """Write to the home; a failure, such as a full disk, is reported and tried again.

        A write that fails never stops the stack: see `app.stack.leftovers`.
        """
        try:
            write()
        except OSError as error:
            now = time.monotonic()
            if now - self._reported.get(what, -REPORT_SECONDS) >= REPORT_SECONDS:
                self._reported[what] = now
                self.report(f"cannot {what}: {error}; will try again")
            return False
        return True

    def _start(self, slot: Slot) -> None:
        try:
            self._reset_if_in_vain(slot)
            slot.spec.before_start()
            log = self.home.log(slot.spec.name)
            slot.child = spawn(slot.spec, self.environment, log, self.fork)
        except OSError as error:
            self._schedule_restart(slot, lived_seconds=0.0)
            self.report(f"{slot.spec.name} cannot start: {error}")
            return
        slot.state = SlotState.RUNNING
        slot.ready_at = slot.check_at = time.monotonic()
        slot.unready_since = slot.unready_since or slot.ready_at
        if slot.restarts:
            self.report(f"{slot.spec.name} restarted (pid {slot.child.pid})")

    def _reset_if_in_vain(self, slot: Slot) -> None:
        seconds = UNREADY_TIMES_BEFORE_RESET * slot.most_unready_seconds
        since = slot.unready_since
        if slot.spec.is_ready and since and time.monotonic() - since >= seconds:
            slot.spec.reset()
            slot.unready_since = 0.0
            slot.resets_in_a_row += 1
            self.report(f"{slot.spec.name} does not get ready: it starts without its old data")

    def _check_ready(self, slot: Slot) -> None:
        """Kill a process that has not been ready for too long; its death starts it again."""
        if slot.child is None or slot.spec.is_ready is None:
            return
        ready, now = slot.spec.is_ready(), time.monotonic()
        slot.check_at = now + (CHECK_SECONDS if ready else 1.0)
        if ready:
            slot.ready_at, slot.unready_since, slot.resets_in_a_row = now, 0.0, 0
        elif now - slot.ready_at > (seconds := slot.most_unready_seconds):
            self.report(f"{slot.spec.name} was not ready for {seconds:g} s: killed")
            slot.child.kill()

    def _notice_death(self, slot: Slot, status: int, now: float) -> None:
        child, slot.child = slot.child, None
        if slot.state == SlotState.STOPPING:
            self.slots.remove(slot)
        elif child:
            self._schedule_restart(slot, now - child.started_at)
            killed = f"was killed by {signal.Signals(-status).name}" if status < 0 else ""
            how = killed or f"exited with status {status}"
            self.report(f"{slot.spec.name} {how}; see {self.home.log(slot.spec.name)}")

    def _schedule_restart(self, slot: Slot, lived_seconds: float) -> None:
        if lived_seconds >= HEALTHY_SECONDS:
            slot.deaths_in_a_row = 0
        slot.due_at = time.monotonic() + restart_delay(slot.deaths_in_a_row)
        slot.deaths_in_a_row += 1
        slot.restarts += 1
        slot.state = SlotState.WAITING

    def _begin_stop(self, slot: Slot, drain: bool = False) -> None:
        if slot.child is None:
            self.slots.remove(slot)
        elif slot.state != SlotState.STOPPING:
            slot.state, slot.stop_step, slot.due_at = SlotState.STOPPING, 0, 0.0
            slot.draining = drain
        elif slot.draining and not drain:
            # Asked to stop already: from here on the time of that step counts.
            slot.draining = False
            seconds = slot.spec.stop[slot.stop_step - 1].seconds if slot.stop_step else 0.0
            slot.due_at = min(slot.due_at, time.monotonic() + seconds)

    def _next_stop_step(self, slot: Slot, now: float) -> None:
        if slot.child is None:
            return
        if slot.stop_step >= len(slot.spec.stop):
            self.report(f"{slot.spec.name} did not stop in time: killed")
            slot.child.kill()
            slot.due_at = now + 1.0
            return
        step = slot.spec.stop[slot.stop_step]
        seconds = step.seconds
        if slot.draining and slot.stop_step == 0:
            seconds = max(seconds, slot.spec.drain_seconds)
            if slot.spec.drain_signal:
                slot.child.send(slot.spec.drain_signal)
        slot.child.send(step.signal)
        slot.stop_step, slot.due_at = slot.stop_step + 1, now + seconds

    def _pids(self) -> list[int]:
        return [slot.child.pid for slot in self.slots if slot.child]


def restart_delay(earlier_deaths: int) -> float:
    """Seconds until a restart: almost none after the first death, then 0.5 s doubling to 30 s."""
    if earlier_deaths == 0:
        return FIRST_DELAY_SECONDS
    # The exponent is capped too: a process that dies for weeks must not overflow a float.
    return min(0.5 * 2.0 ** min(earlier_deaths - 1, 10), LONGEST_DELAY_SECONDS)
