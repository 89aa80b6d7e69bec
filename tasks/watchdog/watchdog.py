"""Watchdog: a native thread in every worker process that ends runs which do not end in time.

No greenlet can hold it up. A cancelled run is interrupted: a ``Stop`` is raised inside it, and it
may clean up until the cancel grace is over. A run that breaks a limit is interrupted too. If it
continues, it is settled under its lease, the other claims of the process are handed back at no
cost, and the process kills itself; its process manager starts another.

Blocking and silence count only as far as the watchdog itself was running and the main thread was
not waiting for a CPU, so that a frozen or starved process is not killed for it. Leases expire all
the same, so the watchdog renews them while the heartbeat cannot. It also keeps the presence of the
process whenever the heartbeat is late, be it behind a blocked event loop or a locked table.

Not guaranteed: anything while native code holds the interpreter lock. Then the watchdog does not
run either, and the process is killed by a system timer that the watchdog no longer restarts; the
reaper finds its runs. Under prefork the parent is faster, see :mod:`tasks.watchdog.lost_runs`.
Until then another process keeps the presence, see :mod:`tasks.watchdog.presence_keeper`.
"""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections.abc import Iterable, Sequence
from random import Random

from models.jobs.claim import JobRef
from models.jobs.heartbeat import BEAT
from models.jobs.release import HAND_BACK
from models.jobs.settle import Settlement, settle_statement, settled, with_logs
from models.pools import POOLS
from models.presence import KEEP_PRESENT, LEAVE_WITHOUT_RUNS, PRESENCE_SECONDS
from models.store.errors import StateStoreUnavailable
from models.store.prepared import SHORT_LOCK_WAIT
from models.tallies import ADD, COUNT_KILLS, added, recycled
from models.tenant_tallies import RunTallies
from tasks.errors import Cancelled, LeaseLost, Stop, TimeLimit
from tasks.process import (
    FairClock,
    frame_of,
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
    ref_parameters,
    write_now,
)
from tasks.watchdog.loop_monitor import LoopMonitor
from tasks.watchdog.violation import Bounds, Sight, violation_of
from tasks.worker.decide import close_run, counts_of, settlement_of, standing_of
from tasks.worker.held import Held
from tasks.worker.limits import MEGABYTE, ignore_late_alarms, raise_memory_limit
from tasks.worker.outcome import HandedBack, Outcome, Released, outcome_of
from tasks.worker.run_log import stack_of
from tasks.worker.worker import Worker

#: Pause between two looks, and while the worker has no jobs.
LOOK_SECONDS = 0.25
REST_SECONDS = 1.0
#: What a run gets to end after it was interrupted.
GRACE_SECONDS = 2.0
#: … if it blocks the others meanwhile: their leases expire.
BLOCKING_GRACE_SECONDS = 0.5
#: Statements, at most, that hand back the other runs of a process that ends: each takes some
#: milliseconds. One for each run, if there are no more of them.
MOST_STATEMENTS = 50
#: How long to try to renew the leases, or the presence.
RENEWAL_SECONDS = 2.0
#: The presence is written from here when nobody has done so for this long.
LATE_SECONDS = 1.5 * PRESENCE_SECONDS


class Watchdog:
    def __init__(self, worker: Worker, pools: Iterable[str], cancel_grace_seconds: float) -> None:
        self._worker = worker
        self._cancel_grace = cancel_grace_seconds
        self._lease = min(POOLS[pool].lease_seconds for pool in pools)
        self._connect = connect_arguments(worker.engine.url)
        self._monitor: LoopMonitor | None = None
        self._thread = native_ident()
        #: Seconds since a run was interrupted, as far as it was able to end.
        self._interrupted: dict[JobRef, float] = {}
        #: Cancelled runs that were interrupted, once.
        self._cancelled: set[JobRef] = set()
        self._stopped = False
        #: When the leases were last renewed from here.
        self._renewed = 0.0
        #: When that was last tried from here.
        self._presented = 0.0

    def start(self) -> None:
        """Begin to watch. Call it on the main thread, after all forking."""
        self._thread = native_ident()
        if is_green():
            self._monitor = LoopMonitor(self._worker.slots.held)
        else:
            ignore_late_alarms()
        self._restart_timer()
        start_native(self._watch, system_thread())

    def stop(self) -> None:
        self._stopped = True
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _watch(self, main: int) -> None:
        clock = FairClock(2 * LOOK_SECONDS, time.monotonic(), starved_seconds(main))
        while not self._stopped:
            native_sleep(LOOK_SECONDS if self._worker.slots.held() else REST_SECONDS)
            now = time.monotonic()
            try:
                self._restart_timer()
                self.keep_present(now)
                elapsed = clock.elapsed(now, starved_seconds(main))
                if self._worker.slots.held():  # else there is nothing to wake the loop for
                    self.look(now, elapsed)
            except Exception:  # noqa: BLE001 - whatever it is, the watchdog has to continue
                note(traceback.format_exc())

    def _restart_timer(self) -> None:
        """SIGVTALRM kills the process unless the timer is restarted in time.

        After a lease's time of computing, not of waiting: one that was stopped must not die.
        """
        leases = [POOLS[held.claim.pool].lease_seconds for held in self._worker.slots.held()]
        signal.setitimer(signal.ITIMER_VIRTUAL, min(leases, default=self._lease))

    def look(self, now: float, elapsed: float) -> None:
        """Check every run that was able to end; ``elapsed`` counts as watched."""
        monitor = self._monitor
        if monitor is not None:
            monitor.look(now, elapsed)
        blocker = monitor.blocker if monitor else None
        guilty: list[tuple[Held, Stop]] = []
        # What waits to be on record has done nothing yet.
        held_now = self._worker.slots.held()
        running = [held for held in held_now if held.running and held.started is not None]
        for held in running:
            self._interrupt_cancelled(held)
            if monitor and monitor.silent_since is not None and held is not blocker:
                continue  # it cannot do anything as long as another one does not yield
            if (stop := self._judge(held, now, elapsed)) is not None:
                guilty.append((held, stop))
        refs = {held.claim.ref for held in running}
        self._cancelled &= refs
        self._interrupted = {
            ref: seconds for ref, seconds in self._interrupted.items() if ref in refs
        }
        if guilty:
            self._kill_process_after_writing(guilty)
        if monitor and monitor.silent_seconds > self._lease and running:
            note(
                "the event loop is blocked, by no job, and the leases are lost: killing the process"
            )
            kill_process()
        if monitor and monitor.silent_since is not None:
            self._renew_leases(now, monitor.silent_since)

    def _interrupt_cancelled(self, held: Held) -> None:
        """Once, and not if it knows already: then it is cleaning up."""
        ref, interrupt = held.claim.ref, held.interrupt
        if held.cancelled is None or held.cancel_seen or interrupt is None:
            return  # if it cannot be interrupted yet, the next look finds it
        job_type = self._worker.types.get(held.claim.type)
        if ref not in self._cancelled and job_type and job_type.cancel == "interrupt":
            self._cancelled.add(ref)
            interrupt(Cancelled())

    def _renew_leases(self, now: float, silent_since: float) -> None:
        """Heartbeats beside a blocked event loop, before the first lease expires.

        Under contention that may be long before a run is to blame. Whether a lease was lost is
        left to the worker's own heartbeat.
        """
        if now - max(silent_since, self._renewed) < self._lease / 5:
            return
        self._renewed = now
        refs = [held.claim.ref for held in self._worker.slots.held() if not held.lost]
        statements = [(BEAT, ref_parameters(refs, worker=self._worker.name))]
        try:
            write_now(self._connect, statements, RENEWAL_SECONDS)
        except StateStoreUnavailable as error:
            note(f"the leases could not be renewed: {error}")

    def keep_present(self, now: float) -> None:
        """Report in place of a late heartbeat, on a thread: runs are to be watched meanwhile."""
        late = now - self._worker.heartbeat.announced >= LATE_SECONDS
        if late and now - self._presented >= PRESENCE_SECONDS:
            self._presented = now
            start_native(self._present)

    def _present(self) -> None:
        try:
            presence = (KEEP_PRESENT, {"names": [self._worker.name]})
            [written] = write_now(self._connect, [presence], RENEWAL_SECONDS)
            if written:
                self._worker.heartbeat.note_announced()
        except StateStoreUnavailable as error:
            note(f"the presence could not be kept: {error}")

    def _judge(self, held: Held, now: float, elapsed: float) -> Stop | None:
        """Interrupt a run that broke a limit; why, if it was interrupted and did not end."""
        ref = held.claim.ref
        stop = violation_of(self._sight(held, now), self._bounds(held))
        if stop is None:
            self._interrupted.pop(ref, None)
            held.strike = None
            return None
        if ref not in self._interrupted:
            self._interrupted[ref] = 0.0
            if self._monitor is not None and held is self._monitor.blocker:
                self._monitor.strike(held, stop)
            # At its time limit its own timer has interrupted it. Twice would be once too often:
            # it may be cleaning up.
            elif not isinstance(stop, TimeLimit) and (interrupt := held.interrupt) is not None:
                interrupt(stop)
            return None
        self._interrupted[ref] += elapsed
        if isinstance(stop, LeaseLost):
            return None  # its time limit still holds; there is nothing else to save
        urgent = self._blocking(held) > blocking_seconds(self._lease)
        grace = BLOCKING_GRACE_SECONDS if urgent else GRACE_SECONDS
        return stop if self._interrupted[ref] >= grace else None

    def _blocking(self, held: Held) -> float:
        """For how long the run has kept the others from running."""
        monitor = self._monitor
        return monitor.blocking_seconds if monitor and held is monitor.blocker else 0.0

    def _bounds(self, held: Held) -> Bounds:
        job_type = self._worker.types.get(held.claim.type)
        dedicated, pool = self._monitor is None, POOLS[held.claim.pool]
        return Bounds(
            held.timeout_seconds,
            self._cancel_grace,
            pool.progress_seconds,
            blocking_seconds(self._lease),
            job_type.memory_mb if job_type and dedicated else None,
            job_type.cpu_seconds if job_type and dedicated else None,
            pool.checkpoint_seconds,
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
            time.process_time() - held.cpu_before if measured else 0.0,
            0.0 if held.saving else now - held.saved,
        )

    def _kill_process_after_writing(self, guilty: Sequence[tuple[Held, Stop]]) -> None:
        """Write how its runs end, then die; in time, whatever goes wrong."""
        try:
            self._worker.slots.forbid_claims()
            raise_memory_limit()
            start_native(kill_process, EMERGENCY_SECONDS)
            for held, stop in guilty:
                note(f"job {held.claim.ref.id} does not end, killing its process: {stop}")
            self._keep_stack(guilty)
            write_now(self._connect, self._final_statements(guilty))
        except BaseException:  # noqa: BLE001 - nothing is left to raise it to
            note(traceback.format_exc())
        finally:
            kill_process()

    def _keep_stack(self, guilty: Sequence[tuple[Held, Stop]]) -> None:
        """Note where the process is, and where it is the run's own place, keep that for it."""
        frame = frame_of(self._thread)
        stack = "(no stack)" if frame is None else stack_of(frame)
        note(stack)
        for held, _ in guilty:
            if self._monitor is None or held is self._monitor.blocker:
                held.traceback = stack

    def _final_statements(self, guilty: Sequence[tuple[Held, Stop]]) -> list[Statement]:
        worker, now, tallies = self._worker, time.monotonic(), RunTallies()

        def settle(held: Held, outcome: Outcome) -> Settlement:
            claim, ran = held.claim, held.ran(now)
            job_type = worker.types.get(claim.type)
            standing = standing_of(claim, worker.heartbeat.rules)
            outcome, ending = close_run(claim, outcome, job_type, standing, Random())
            tallies.add_run(counts_of(claim, job_type, outcome, ending, ran, held.waited))
            return settlement_of(claim, ending, ran, held)

        # First: a claim is held before it counts as answered.
        unanswered = worker.slots.unanswered()
        held = worker.slots.held()
        ended = {one.claim.ref for one, _ in guilty}
        innocent = [
            settle(one, Released() if one.started is None else HandedBack())
            for one in held
            if one.claim.ref not in ended
        ]
        on_their_way = set(unanswered) - {one.claim.ref for one in held}
        violators = [settle(one, outcome_of(stop)) for one, stop in guilty]
        tallies.add_all([recycled(one.claim.pool) for one, _ in guilty[:1]])
        # Several statements: an ending that cannot be written, or whose row is locked, is not the
        # others' fault.
        alone = f"{SHORT_LOCK_WAIT} {with_logs(settle_statement(()))}"
        size = max(1, math.ceil(len(innocent) / MOST_STATEMENTS))
        return [
            # Without projections: none has a result, and one that fails would stop the rest.
            *(
                (alone, settled(worker.name, innocent[first : first + size]))
                for first in range(0, len(innocent), size)
            ),
            (with_logs(settle_statement([COUNT_KILLS])), settled(worker.name, violators)),
            (ADD, added(tallies.take().items())),
            (LEAVE_WITHOUT_RUNS, {"name": worker.name}),
            # Last: it waits for claims that are on their way, which may wait for a locked row.
            (HAND_BACK, ref_parameters(on_their_way, worker=worker.name)),
        ]


def blocking_seconds(lease_seconds: float) -> float:
    """How long a run may keep the others of its process from running.

    Half a lease, and never so long that they cannot be handed back in time: the last
    heartbeat may be a third of the lease and a pulse old when the blocking begins.
    """
    last_heartbeat = lease_seconds / 3 + PRESENCE_SECONDS
    remaining = lease_seconds - last_heartbeat - BLOCKING_GRACE_SECONDS - 1.0
    return max(1.0, min(lease_seconds / 2, remaining))


def note(text: str) -> None:
    """Write to the log without logging's locks: a stuck run may hold one."""
    os.write(2, f"watchdog: {text.rstrip()}\n".encode("utf-8", "replace"))


def kill_process(seconds: float = 0.0) -> None:
    """Kill this process, at once or after a while."""
    if seconds:
        native_sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
