"""Watch: the event streams of one process, and the one reader thread that serves them all.

The thread reads, a few times per second, every watched job that was written since and the next
entries of every watched feed. It holds a connection only for the moment of a read and sleeps while
there are no streams. While the state store is away streams stay open; what happened follows.

Guarantees: a stream of a job ends with the job's last state; a feed has no gap and no entry
twice. Not guaranteed: states of a job between two reads.
"""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from app.errors import FieldError, TenantStreamsExceeded, TooManyStreams, ValidationFailed
from app.reads.events.feed import PAGE, FeedEnd, read_ends, read_entries
from app.reads.events.job_state import UNSEEN, JobState, read_changed
from app.reads.events.message import OPENING
from app.reads.events.places import Readers, batches, choose
from app.reads.events.position import parse_position
from app.reads.events.stream import EndWaiter, FeedStream, JobStream, Stream, prepare
from app.tenants.ownership import own_in_scope, within_scope
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit

logger = logging.getLogger(__name__)

#: Streams of one process, as long as they leave half of its files to others.
MOST_STREAMS = 5_000
#: Of them, the part that one tenant may have; a tenant whose other process died has all of its
#: streams in one.
TENANT_SHARE = 0.5
#: When a tenant with too many streams may try again.
RETRY_SECONDS = 10.0
#: Of them, requests that wait for the end of a job; and those of one tenant.
MOST_WAITERS = 2_000
MOST_WAITERS_OF_TENANT = 500
#: Rest after a read: the shortest, the longest, and ten times what the read took in between.
REST_SECONDS = 0.2
LONG_REST_SECONDS = 0.5
REST_FACTOR = 10
#: Rest while a feed has more to give, and while the state store is away.
MORE_SECONDS = 0.02
AWAY_SECONDS = 0.5
#: Jobs in one statement; between two statements other threads run.
JOBS_AT_ONCE = 500


@dataclass(slots=True, eq=False)
class WatchedJob:
    """A job with streams, and the mark of its row when it was last read."""

    mark: str
    streams: set[JobStream] = field(default_factory=set)


class Watch:
    """Opens streams and keeps them up to date."""

    def __init__(
        self, engine: Engine, read_seconds: float, most_streams: int = MOST_STREAMS
    ) -> None:
        self._engine = engine
        self._read_seconds = read_seconds
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_streams = min(most_streams, max(1, files // 2)) if files > 0 else most_streams
        self._jobs: dict[str, WatchedJob] = {}
        self._feeds: set[FeedStream] = set()
        self._most_of_tenant = max(1, int(self._most_streams * TENANT_SHARE))
        #: Streams that are open, and by tenant, without requests that wait.
        self.count = 0
        self._of_tenants: Counter[int] = Counter()
        #: Of them, requests that wait for the end of a job, by tenant.
        self._waiters: Counter[int] = Counter()
        self._changing = threading.Lock()
        self._has_streams = threading.Event()
        self._closed = threading.Event()
        self._reader: threading.Thread | None = None
        #: When the jobs are to be looked at again.
        self._jobs_due = 0.0
        # Many clients come at once, say after a restart: their first reads are shared too.
        self._states: GroupCommit[str, JobState | None] = GroupCommit(self._read_states, name="job")
        self._ends: GroupCommit[int, FeedEnd] = GroupCommit(self._read_ends, name="feed")

    def open_job(
        self,
        tenant_id: int,
        job_id: str,
        known: str | None,
        wire: socket.socket | None = None,
        key: str = "",
    ) -> Iterator[bytes] | None:
        """The stream of one job for a client that knows the version ``known``.

        None if it has ended and the client knows: there is nothing more to come.
        """
        state = own_in_scope(self._states.submit(job_id, self._read_seconds), tenant_id)
        if state.status.terminal:
            return None if state.version == known else iter([OPENING + state.event_after("")])
        self._check_room(tenant_id)
        stream = JobStream(job_id, state.version, wire=wire, key=key)
        if state.version != known:
            stream.send(state.event_after(""))
        return self._counted(tenant_id, self._serve_job(stream, state.mark))

    def open_feed(
        self,
        tenant_id: int,
        last_event_id: str | None,
        job_type: str | None = None,
        wire: socket.socket | None = None,
        key: str = "",
    ) -> Iterator[bytes]:
        """The tenant's feed, from after ``last_event_id`` or from now on."""
        end = self._ends.submit(within_scope(tenant_id), self._read_seconds)
        asked = None if last_event_id is None else parse_position(last_event_id)
        position = None if asked is None else end.resumed(asked)
        if last_event_id is not None and position is None:
            raise ValidationFailed(
                errors=(FieldError("Last-Event-ID", "is not one this server gave out"),)
            )
        self._check_room(tenant_id)
        position = position or end.position
        behind = position != end.position
        stream = FeedStream(tenant_id, position, job_type, behind, wire=wire, key=key)
        return self._counted(tenant_id, self._serve_feed(stream))

    def wait_for_end(
        self,
        tenant_id: int,
        job_id: str,
        seconds: float,
        key: str = "",
        wire: socket.socket | None = None,
    ) -> bool:
        """Wait until the job has ended, for so long, or until the client or the process is gone.

        False, at once, if as many wait as may. Needs no connection: the reader has one.
        """
        waiter = EndWaiter(job_id, "", wire=wire, key=key)
        with self._changing:
            if not self._has_room_for_waiter(tenant_id):
                return False
            self._waiters[tenant_id] += 1
            job = self._add(waiter, UNSEEN)
        try:
            waiter.wait(seconds)
        finally:
            with self._changing:
                self._waiters[tenant_id] -= 1
                if not self._waiters[tenant_id]:
                    del self._waiters[tenant_id]
                self._remove(waiter, job)
        return True

    def _has_room_for_waiter(self, tenant_id: int) -> bool:
        return (
            self.count < self._most_streams
            and self._waiters.total() < MOST_WAITERS
            and self._waiters[tenant_id] < MOST_WAITERS_OF_TENANT
        )

    def end_of_keys(self, keys: Collection[str]) -> None:
        """End the streams that these keys opened: they were revoked."""
        with self._changing:
            for stream in self._streams():
                if stream.key in keys:
                    stream.end()

    def close(self) -> None:
        """End all streams at once; their clients reconnect to another process."""
        with self._changing:
            self._closed.set()
            self._has_streams.set()
            for stream in self._streams():
                stream.end()

    def _streams(self) -> list[Stream]:
        watched = [stream for job in self._jobs.values() for stream in job.streams]
        return [*watched, *self._feeds]

    def _check_room(self, tenant_id: int) -> None:
        if self.count >= self._most_streams:
            raise TooManyStreams
        if self._of_tenants[tenant_id] >= self._most_of_tenant:
            raise TenantStreamsExceeded(retry_seconds=RETRY_SECONDS)

    def _counted(self, tenant_id: int, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The stream, as one of its tenant's while it is read."""
        with self._changing:
            self._of_tenants[tenant_id] += 1
        try:
            yield from messages
        finally:
            with self._changing:
                self._of_tenants[tenant_id] -= 1
                if not self._of_tenants[tenant_id]:
                    del self._of_tenants[tenant_id]

    # Streams are registered when their first byte is asked for, so that one that is never read
    # from leaves nothing behind.

    def _serve_job(self, stream: JobStream, mark: str) -> Iterator[bytes]:
        with self._changing:
            job = self._add(stream, mark)
        try:
            yield from stream.messages()
        finally:
            with self._changing:
                self._remove(stream, job)

    def _add(self, stream: JobStream, mark: str) -> WatchedJob:
        job = self._jobs.setdefault(stream.job_id, WatchedJob(mark))
        if job.mark != mark:
            job.mark = UNSEEN  # which of the two is newer is found out by the next read
        job.streams.add(stream)
        self._register(stream)
        return job

    def _remove(self, stream: JobStream, job: WatchedJob) -> None:
        job.streams.discard(stream)
        if not job.streams and self._jobs.get(stream.job_id) is job:
            del self._jobs[stream.job_id]
        self._unregister()

    def _serve_feed(self, stream: FeedStream) -> Iterator[bytes]:
        with self._changing:
            self._feeds.add(stream)
            self._register(stream)
        try:
            yield from stream.messages()
        finally:
            with self._changing:
                self._feeds.discard(stream)
                self._unregister()

    def _register(self, stream: Stream) -> None:
        prepare(stream.wire)
        self.count += 1
        if self._closed.is_set():
            stream.end()  # the client comes back, to another process
            return
        self._has_streams.set()
        if self._reader is None:
            # Started late, so that a process forks before it has threads.
            self._reader = threading.Thread(target=self._run, name="events", daemon=True)
            self._reader.start()

    def _unregister(self) -> None:
        self.count -= 1
        if not self.count and not self._closed.is_set():
            self._has_streams.clear()

    def _run(self) -> None:
        away, more = False, False
        while self._has_streams.wait() and not self._closed.is_set():
            began = time.monotonic()
            try:
                # A feed that catches up is read often, the jobs only as often as ever.
                away, more = False, self.look(jobs=not more or began >= self._jobs_due)
                rest = MORE_SECONDS if more else 0.0
            except StateStoreError as error:
                if not away:
                    logger.warning("events wait for the state store: %s", error)
                away, rest = True, AWAY_SECONDS
            except Exception:  # streams must outlive whatever one row does
                logger.exception("reading events failed")
                rest = AWAY_SECONDS
            spent = time.monotonic() - began
            usual = min(LONG_REST_SECONDS, max(REST_SECONDS, spent * REST_FACTOR))
            self._closed.wait(rest or usual)

    def look(self, *, jobs: bool = True) -> bool:
        """Send all streams what happened; whether a feed has more to give right now."""
        if jobs:
            self._look_at_jobs()
        return self._look_at_feeds()

    def _look_at_jobs(self) -> None:
        with self._changing:
            marks = {job_id: job.mark for job_id, job in self._jobs.items()}
        for batch in batches(marks.items(), JOBS_AT_ONCE):
            for job_id, state in read_changed(self._engine, batch).items():
                self._send_state(job_id, marks[job_id], state)
        self._jobs_due = time.monotonic() + REST_SECONDS

    def _look_at_feeds(self) -> bool:
        # Those whose mailboxes are full want nothing now.
        readers: Readers = {}
        with self._changing:
            for stream in self._feeds:
                if stream.has_room():
                    readers.setdefault((stream.tenant_id, stream.position), []).append(stream)
                else:
                    stream.behind = True
        statements, more = choose(readers)
        for places in statements:
            if time.monotonic() >= self._jobs_due:
                self._look_at_jobs()
            for place, entries in zip(places, read_entries(self._engine, places), strict=True):
                full = len(entries) == PAGE
                for reader in readers[place]:
                    reader.read(entries, full)
                more |= full
                if entries:
                    time.sleep(0)  # the loop goes on to other greenlets
        return more

    def _send_state(self, job_id: str, mark: str, state: JobState | None) -> None:
        with self._changing:
            job = self._jobs.get(job_id)
            if job is None:
                return
            if state is None or state.status.terminal:
                del self._jobs[job_id]
            elif job.mark == mark:
                job.mark = state.mark
            else:
                return  # a stream was opened whose first state may be newer than this one
            streams = list(job.streams)
        for stream in streams:
            if state is None:
                stream.end()  # the row is gone; a client that asks again gets a 404
            elif state.status.terminal:
                stream.send(state.event_after(""))
                stream.end()
            elif state.version != stream.known and stream.has_room():
                stream.send(state.event_after(stream.known))
                stream.known = state.version

    def _read_states(self, ids: Sequence[str]) -> list[JobState | None]:
        found = read_changed(self._engine, [(job_id, UNSEEN) for job_id in set(ids)])
        return [found[job_id] for job_id in ids]

    def _read_ends(self, tenant_ids: Sequence[int]) -> list[FeedEnd]:
        ends = read_ends(self._engine, tenant_ids)
        return [ends[tenant_id] for tenant_id in tenant_ids]
