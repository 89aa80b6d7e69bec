"""Server-sent events of a job, and of all of a tenant's jobs; read from the rows.

One read per fifth of a second serves all streams of a process; see
``docs/decisions/0008-events-from-rows.md``.
"""

from app.reads.events.watch import Watch

__all__ = ["Watch"]
