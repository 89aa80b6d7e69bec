"""A request body that has arrived completely.

Imported by the server's master process before gevent patches: nothing else may come along, least
of all kombu, whose ``sleep`` would block all of a process's requests.
"""

from __future__ import annotations

from io import BytesIO


class CompleteBody(BytesIO):
    """A body that has arrived completely: reading it never blocks."""
