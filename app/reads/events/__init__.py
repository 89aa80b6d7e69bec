"""Server-sent events: what happens to a job, and to a tenant's jobs, told as it is read.

Rows are the source. One look a fifth of a second serves all streams of a process, and none
is taken while nobody listens; see ``docs/decisions/0008-events-from-rows.md``.
"""

from app.reads.events.watch import Watch

__all__ = ["Watch"]
