"""A submission: a validated request on its way to becoming a row.

Tuples, because each request makes some: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

#: A row costs a statement about as much as this many bytes of payload: its columns are sent,
#: counted and indexed. Keeps a group of batches from becoming one statement of 500,000 rows.
ROW_WEIGHT = 1_000
#: Of a process without a registry. A cell refuses its keys for a tenant that has ever been moved or
#: spread, as they may belong elsewhere; a database without cells has no such tenant.
NO_PLACEMENT = 0
#: Of what is admitted whatever a cell knows, say because its cell was chosen before.
ANY_PLACEMENT = 2**63 - 1


class Submission(NamedTuple):
    """One item of a request: a job, and an application if it names a candidate."""

    id: str
    tenant_id: int
    type: str
    pool: str
    #: JSON text.
    payload: str
    priority: int = 0
    execute_at: datetime | None = None
    not_after: datetime | None = None
    traceparent: str | None = None
    candidate: str | None = None
    role: str | None = None
    #: Service its type depends on; empty if there is none.
    dependency: str = ""
    #: Where the payload is if it is large; ``payload`` is then JSON's null.
    payload_blob: str | None = None
    #: Whether its tenant may use the express lane; jobs of free accounts are queued.
    express: bool = True
    #: Jobs of its tenant that may be in flight in the pool; None: no cap.
    cap: int | None = None
    #: The job whose payload was edited for it.
    resubmitted_from: str | None = None

    def in_trace(self, traceparent: str | None) -> Submission:
        """The same with this context; ``_replace`` takes twice as long."""
        return tuple.__new__(Submission, (*self[:TRACED], traceparent, *self[TRACED + 1 :]))


#: Where the context is.
TRACED = Submission._fields.index("traceparent")


class IdempotencyKey(NamedTuple):
    """What makes a request repeatable."""

    text: str
    #: Of the request, to tell a repetition from another one under the same key.
    digest: bytes
    #: The version of the placement by which this cell was chosen.
    placement: int = ANY_PLACEMENT


class SubmissionGroup(NamedTuple):
    """One request: its submissions, at least one, become rows together or not at all."""

    submissions: tuple[Submission, ...]
    key: IdempotencyKey | None = None

    @property
    def weight(self) -> int:
        """What it adds to a statement, in bytes."""
        return sum(len(item.payload) + ROW_WEIGHT for item in self.submissions)


class KeyReused(NamedTuple):
    """The entry's idempotency key stands for another request: nothing was inserted.

    A value and no error: one caller's mistake is not the group's.
    """


class TenantAway(NamedTuple):
    """The entry's tenant is placed in another cell: nothing was inserted.

    Or the caller knows an earlier placement only, and there is a key, which may belong elsewhere.
    """


class Admitted(NamedTuple):
    """What became of an entry."""

    #: Ids of its jobs; those of the first request if it was a repetition.
    ids: tuple[str, ...]
    #: When the first request was admitted, if this was a repetition of it.
    first_at: datetime | None = None
    #: Submissions that went by the express lane.
    express: tuple[Submission, ...] = ()
    #: Whether a worker was given the job, so that it needs no message; and whether one would take
    #: another.
    given: bool = False
    offered: bool = False

    @property
    def repeated(self) -> bool:
        """The key was used before, for the same request: nothing was inserted."""
        return self.first_at is not None
