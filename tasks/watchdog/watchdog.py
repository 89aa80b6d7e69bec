"""A thread in every worker process that ends jobs which do not end by themselves.

A native thread in every worker process, which no greenlet can hold up. A run that breaks a
limit is told first: a ``Stop`` is raised inside it. One that goes on is settled under its
lease, the other claims of the process are handed back without cost, and the process kills
itself; whoever keeps the processes starts another one.

Blocking and silence count only as far as the watchdog itself was running and the main thread
was not in line for a processor: a process that was frozen or starved owes nobody for that.
Leases know no such mercy, so the watchdog renews them as long as the others cannot.

Not guaranteed: anything while native code holds the interpreter lock. Then the watchdog does
not run either, and the process dies of a timer of the system that the watchdog no longer
winds up; the reaper finds its runs. Under prefork the parent is faster, see
:mod:`tasks.watchdog.overdue`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from models.jobs.claim import JobRef
from models.jobs.heartbeat import BEAT
from models.jobs.release import HAND_BACK
from models.jobs.settle import settled
from models.pools import POOLS
from models.presence import LEAVE, PRESENCE_SECONDS
from models.store.errors import StateStoreUnavailable
from models.tallies import ADD, Tallies, added
from tasks.errors import LeaseLost, Stop, TimeLimit
from tasks.process import (
    FairClock,
    cpu_seconds,
    is_green,
    memory_bytes,
    native_ident,
    native_sleep,
    start_native,
    starved_seconds,
    system_thread,
)
from tasks.watchdog.emergency_write import (
    EMERGENCY_SECONDS,
    Statement,
    connect_arguments,
    write_now,
)
from tasks.watchdog.loop_monitor import LoopMonitor
from tasks.watchdog.violation import Bounds, Sight, violation_of
from tasks.worker.counts import count_run
from tasks.worker.decide import close_run, settlement_of, standing_of
from tasks.worker.held import Held
from tasks.worker.limits import MEGABYTE, hush_alarms, make_room
from tasks.worker.outcome import outcome_of
from tasks.worker.worker import Worker

#: Rest between two looks.
LOOK_SECONDS = 0.25
#: What a run gets to end after it was told to.
GRACE_SECONDS = 2.0
#: … if it blocks the others meanwhile: their leases run out.
BLOCKING_GRACE_SECONDS = 0.5
#: How long to try to renew the leases.
KEEPING_SECONDS = 2.0


class Watchdog:
    """Watches over the runs of one worker."""

    def __init__(self, worker: Worker, pools: Iterable[str], cancel_grace_seconds: float) -> None:
        self._worker = worker
        self._cancel_grace = cancel_grace_seconds
        self._lease = min(POOLS[pool].lease_seconds for pool in pools)
        self._connect = connect_arguments(worker.engine.url)
        self._monitor: LoopMonitor | None = None
        self._thread = native_ident()
        #: Seconds since a run was told to end, as far as it had the time to.
        self._told: dict[JobRef, float] = {}
        self._stopped = False
        #: When the leases were last renewed from here.
        self._kept = 0.0

    def start(self) -> None:
        """Begin to watch. Call it on the main thread, after all forking."""
        self._thread = native_ident()
        if is_green():
            self._monitor = LoopMonitor(self._worker.slots.held)
        else:
            hush_alarms()
        self._wind_up()
        start_native(self._watch, system_thread())

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped = True
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _watch(self, main: int) -> None:
        clock = FairClock(2 * LOOK_SECONDS, time.monotonic(), starved_seconds(main))
        while not self._stopped:
            native_sleep(LOOK_SECONDS)
            now = time.monotonic()
            try:
                self._wind_up()
                self.look(now, clock.elapsed(now, starved_seconds(main)))
            except Exception:  # noqa: BLE001 - whatever it is, somebody has to go on watching
                note(traceback.format_exc())

    def _wind_up(self) -> None:
        """The default of SIGVTALRM is death; it comes unless the timer is wound up again.

        After a lease's time of computing, not of waiting: a process that is stopped for a
        while must not die of it.
        """
        leases = [POOLS[held.claim.pool].lease_seconds for held in self._worker.slots.held()]
        signal.setitimer(signal.ITIMER_VIRTUAL, min(leases, default=self._lease))

    def look(self, now: float, elapsed: float) -> None:
        """Judge every run that had its chance; ``elapsed`` counts as watched."""
        monitor = self._monitor
        if monitor is not None:
            monitor.look(now, elapsed)
        blocker = monitor.blocker if monitor else None
        guilty: list[tuple[Held, Stop]] = []
        running = [held for held in self._worker.slots.held() if held.running]
        for held in running:
            if monitor and monitor.silent_since is not None and held is not blocker:
                continue  # it cannot do anything as long as another one does not yield
            if (stop := self._judge(held, now, elapsed)) is not None:
                guilty.append((held, stop))
        self._told = {
            held.claim.ref: self._told[held.claim.ref]
            for held in running
            if held.claim.ref in self._told
        }
        if guilty:
            self._kill_process_after_writing(guilty)
        if monitor and monitor.silent_seconds > self._lease and running:
            note("nobody yields, and no run is to blame: the leases are lost, so is this process")
            kill_process()
        if monitor and monitor.silent_since is not None:
            self._keep_leases(now, monitor.silent_since)

    def _keep_leases(self, now: float, silent_since: float) -> None:
        """Heartbeats from beside a hub that does not turn, before the first lease runs out.

        Under contention that may be long before anybody is to blame. Whether a lease was
        lost is left to the worker's own heartbeat.
        """
        if now - max(silent_since, self._kept) < self._lease / 5:
            return
        self._kept = now
        refs = [held.claim.ref for held in self._worker.slots.held() if not held.lost]
        leases = {"ids": [ref.id for ref in refs], "leases": [ref.lease for ref in refs]}
        try:
            write_now(self._connect, [(BEAT, leases)], KEEPING_SECONDS)
        except StateStoreUnavailable as error:
            note(f"the leases could not be renewed: {error}")

    def _judge(self, held: Held, now: float, elapsed: float) -> Stop | None:
        """Tell a run that broke a limit to end; why, if it was told and did not."""
        ref = held.claim.ref
        stop = violation_of(self._sight(held, now), self._bounds(held))
        if stop is None:
            self._told.pop(ref, None)
            held.strike = None
            return None
        if ref not in self._told:
            self._told[ref] = 0.0
            # Of its time limit it was told by its own timer, if it let that ring. Twice would
            # be once too often: it may be cleaning up.
            if self._blocks(held) or not isinstance(stop, TimeLimit):
                self._tell(held, stop)
            return None
        self._told[ref] += elapsed
        if isinstance(stop, LeaseLost):
            return None  # its time limit still holds; nothing else is to be saved
        urgent = self._blocking(held) > blocking_seconds(self._lease)
        grace = BLOCKING_GRACE_SECONDS if urgent else GRACE_SECONDS
        return stop if self._told[ref] >= grace else None

    def _tell(self, held: Held, stop: Stop) -> None:
        if self._monitor is not None and self._blocks(held):
            self._monitor.strike(held, stop)
        elif (interrupt := held.interrupt) is not None:
            interrupt(stop)

    def _blocks(self, held: Held) -> bool:
        """Whether the run keeps the others from running."""
        return self._monitor is not None and held is self._monitor.blocker

    def _blocking(self, held: Held) -> float:
        """… and for how long."""
        return self._monitor.blocking_seconds if self._monitor and self._blocks(held) else 0.0

    def _bounds(self, held: Held) -> Bounds:
        job_type = self._worker.types.get(held.claim.type)
        own = self._monitor is None  # a process of its own
        return Bounds(
            held.timeout_seconds,
            self._cancel_grace,
            POOLS[held.claim.pool].progress_seconds,
            blocking_seconds(self._lease),
            job_type.memory_mb if job_type and own else None,
            job_type.cpu_seconds if job_type and own else None,
        )

    def _sight(self, held: Held, now: float) -> Sight:
        measured = self._monitor is None and held.memory_before > 0
        return Sight(
            held.ran(now),
            0.0 if held.saving else now - held.moved,
            self._blocking(held),
            None if held.cancelled is None else now - held.cancelled,
            held.lost,
            (memory_bytes() - held.memory_before) / MEGABYTE if measured else 0.0,
            cpu_seconds() - held.cpu_before if measured else 0.0,
        )

    def _kill_process_after_writing(self, guilty: Sequence[tuple[Held, Stop]]) -> None:
        """Write how its runs end, then die. Whatever it meets, it dies in time."""
        try:
            self._worker.slots.forbid_claims()
            make_room()
            start_native(kill_process, EMERGENCY_SECONDS)
            for held, stop in guilty:
                note(f"job {held.claim.ref.id} does not end, so its process does: {stop}")
            note("".join(traceback.format_stack(sys._current_frames()[self._thread], limit=10)))
            write_now(self._connect, self._final_statements(guilty))
        except BaseException:  # noqa: BLE001 - there is nobody left to raise it to
            note(traceback.format_exc())
        finally:
            kill_process()

    def _final_statements(self, guilty: Sequence[tuple[Held, Stop]]) -> list[Statement]:
        worker, now, tallies = self._worker, time.monotonic(), Tallies()
        settlements = []
        for held, stop in guilty:
            claim, ran = held.claim, held.ran(now)
            job_type = worker.types.get(claim.type)
            standing = standing_of(claim, worker.heartbeat.rules)
            outcome, ending = close_run(claim, outcome_of(stop), job_type, standing, Random())
            count_run(tallies, claim, job_type, outcome, ending, ran)
            settlements.append(settlement_of(claim, ending, ran, held))
        ended = {settlement.ref for settlement in settlements}
        # First: a claim is held before it counts as answered.
        unanswered = worker.slots.unanswered()
        innocent = {held.claim.ref for held in worker.slots.held()} - ended
        return [
            (worker.ledger.settle_sql, settled(settlements)),
            (HAND_BACK, release_parameters(worker.name, innocent)),
            (ADD, added(tallies.take().items())),
            (LEAVE, {"name": worker.name}),
            # Last: it waits for claims that are on their way, and they for whoever has the row.
            (HAND_BACK, release_parameters(worker.name, set(unanswered) - innocent - ended)),
        ]


def release_parameters(worker: str, refs: Iterable[JobRef]) -> dict[str, Any]:
    """The parameters of HAND_BACK, in the lock order of a claim."""
    ordered = sorted(refs)
    return {
        "worker": worker,
        "ids": [ref.id for ref in ordered],
        "leases": [ref.lease for ref in ordered],
    }


def blocking_seconds(lease_seconds: float) -> float:
    """How long a run may keep the others of its process from running.

    Half a lease, and never so long that they cannot be handed back in time: the last
    heartbeat may be a third of the lease and a pulse old when the blocking begins.
    """
    last_heartbeat = lease_seconds / 3 + PRESENCE_SECONDS
    to_go = lease_seconds - last_heartbeat - BLOCKING_GRACE_SECONDS - 1.0
    return max(1.0, min(lease_seconds / 2, to_go))


def note(text: str) -> None:
    """Into the log, past the locks of logging: a stuck run may hold one."""
    os.write(2, f"watchdog: {text.rstrip()}\n".encode("utf-8", "replace"))


def kill_process(seconds: float = 0.0) -> None:
    """End this process, at once or after a while."""
    if seconds:
        native_sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
