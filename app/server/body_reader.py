"""Reads request bodies piece by piece, so that one without an end holds up no other connection.

A socket that always has more is read without a pause otherwise: gevent goes on to other greenlets
only where it has to wait.
"""

from __future__ import annotations

import gevent
from gunicorn.http.unreader import SocketUnreader

#: Largest piece of a body.
PIECE_BYTES = 65_536
#: Of a body that the application has not read; after more of it the connection is closed.
MOST_UNREAD_BYTES = 16 * 1_048_576


class FairUnreader(SocketUnreader):  # type: ignore[misc]  # no stubs
    """Reads a body piece by piece, and lets other connections be served before each one."""

    #: Not gunicorn's 1 MiB: each read of a part copies the rest of the piece.
    max_body_chunk = PIECE_BYTES

    def chunk(self, size_hint: int | None = None) -> bytes:
        """The next piece, after others have had their turn."""
        gevent.sleep(0)
        piece: bytes = super().chunk(size_hint)
        return piece
