"""The slots of a worker process and the jobs it has claimed for them.

Claims go through a group commit of their own: one statement for all messages that arrive
together. A slot is free for the next job when the function returns, and messages are claimed a
little ahead of free slots.

Guarantees: a job that is held here is not claimed a second time by the same process. Not
guaranteed: that a job runs once. It runs at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from models.jobs.claim import Claim, JobRef, claim_group
from models.store.errors import StateStoreUnavailable
from models.store.group_commit import GroupCommit
from tasks.process import bounded_semaphore
from tasks.registry import JobType
from tasks.worker.held import Held


def never() -> bool:
    """No."""
    return False


@dataclass(frozen=True, slots=True)
class Host:
    """The process around a worker: how it is told to stop, and what it is called."""

    #: Asked with every heartbeat, where no signal can begin a drain.
    told_to_stop: Callable[[], bool] = never
    #: Whether a drain may take as long as the runs do: they are not to go on elsewhere.
    retiring: Callable[[], bool] = never
    #: Begins a drain that may take its time, because the row asks for one; None: simply drain.
    retire: Callable[[], None] | None = None
    #: As the row names what the process belongs to: see `models.presence`.
    parent: str | None = None
    node: str = ""


class Slots:
    """What this process may run, what it holds, and whether it still takes more."""

    def __init__(
        self, engine: Engine, types: Mapping[str, JobType], *, name: str, count: int, host: Host
    ) -> None:
        self.name = name
        self.count = count
        self.free = bounded_semaphore(count)
        self.draining = False
        self._being_killed = False
        self._engine = engine
        self._types = types
        self._host = host
        self._busy = 0
        self._held: dict[JobRef, Held] = {}
        self._unanswered: set[JobRef] = set()
        self._claims: GroupCommit[tuple[JobRef, ...], tuple[Claim, ...]] = GroupCommit(
            self._claim, name="claim", max_group=100, persistent=True
        )

    def claim(self, message: tuple[JobRef, ...]) -> tuple[Claim, ...]:
        """Claim the jobs of a message; waits while the state store is away."""
        return self._claims.submit(message)

    def _claim(self, messages: Sequence[tuple[JobRef, ...]]) -> list[tuple[Claim, ...]]:
        """Held before the callers are told: a message that comes twice finds its job taken."""
        fresh = [tuple(ref for ref in message if ref not in self._held) for message in messages]
        before = frozenset(self._unanswered)
        asked = {ref for message in fresh for ref in message}
        # The watchdog's thread forbids claims, then reads what is unanswered, then what is
        # held. In this order every claim is either seen by it or never sent.
        self._unanswered |= asked
        if self._being_killed:
            # Parks the writer in its retries: the messages go back to the broker with the process.
            raise StateStoreUnavailable("the watchdog is about to kill this process")
        claimed = claim_group(self._engine, self.name, fresh, before)
        for claims in claimed:
            for claim in claims:
                job_type = self._types.get(claim.type)
                timeout = job_type.timeout_seconds if job_type else 0.0
                self._held[claim.ref] = Held(claim, timeout)
        self._unanswered -= asked
        return claimed

    def begin(self, claim: Claim) -> Held:
        """Mark the run as started."""
        held = self._held[claim.ref]
        held.begin()
        self._busy += 1
        return held

    def end(self, held: Held) -> None:
        """The slot is free."""
        held.running = False
        self._busy -= 1

    @property
    def busy(self) -> int:
        """Slots in which a function runs."""
        return max(0, self._busy)

    def abandon(self, claim: Claim) -> bool:
        """Give up a claim whose lease is known to be lost; whether it was."""
        held = self._held.get(claim.ref)
        if held is None or held.lost:
            self._held.pop(claim.ref, None)
            return True
        return False

    def held(self) -> list[Held]:
        """The claims in the hands of this process."""
        return list(self._held.values())

    def find(self, ref: JobRef) -> Held | None:
        """The claim of this lease, if it is still held."""
        return self._held.get(ref)

    def forget(self, ref: JobRef) -> Held | None:
        """Hold a claim no longer: its end is written, or nothing can be."""
        return self._held.pop(ref, None)

    def unanswered(self) -> list[JobRef]:
        """What this process has asked for and may have got."""
        return list(self._unanswered)

    def drain(self) -> None:
        """Claim nothing more; what runs goes on. Also ends claims that wait for the store."""
        self.draining = True
        self._claims.close(0)

    def note_drain(self) -> None:
        """Begin to drain from inside a signal handler: takes no lock, the next pulse does."""
        self.draining = True

    def forbid_claims(self) -> None:
        """The watchdog is about to kill the process: what it hands back must not be claimed
        again."""
        self.draining = True
        self._being_killed = True

    def drains(self) -> bool:
        """Whether the process is to stop, as far as anybody has said so."""
        return self.draining or self._host.told_to_stop()

    def cuts_runs_short(self) -> bool:
        """Whether runs are to end at their next checkpoint and go on elsewhere."""
        return self.draining and not self._host.retiring()
