"""Bodies that nobody reads, sent as fast as the connection takes them, hold up no other client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from app.server.body_reader import MOST_UNREAD_BYTES
from tests.integration.server.test_master import NOWHERE
from tests.support.api_server import ApiServer, serving

#: Connections that send at the same time.
FLOODS = 4
PIECE = b"x" * 1_048_576
HEAD = b"GET /healthz HTTP/1.1\r\nHost: fairline\r\n"
#: By the fast path, and by gunicorn's own.
WAYS = {
    "length": (b"Content-Length: 1000000000000\r\n\r\n", PIECE),
    "chunked": (
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"%x\r\n%b\r\n" % (len(PIECE), PIECE),
    ),
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(NOWHERE, tmp_path_factory.mktemp("api"), api_workers=1) as server:
        yield server


def flood(wire: socket.socket, head: bytes, piece: bytes, sent: list[int]) -> None:
    """Send until the server gives up."""
    try:
        wire.sendall(HEAD + head)
        while True:
            wire.sendall(piece)
            sent.append(len(piece))
    except OSError:
        pass


@pytest.mark.parametrize("way", WAYS)
def test_floods_of_unread_bodies_end_and_others_are_served_meanwhile(
    api: ApiServer, way: str
) -> None:
    head, piece = WAYS[way]
    sent: list[list[int]] = [[] for _ in range(FLOODS)]
    wires = [api.connect(60.0) for _ in range(FLOODS)]
    floods = [
        threading.Thread(target=flood, args=(wire, head, piece, each), daemon=True)
        for wire, each in zip(wires, sent, strict=True)
    ]
    try:
        for thread in floods:
            thread.start()
        slowest = 0.0
        deadline = time.monotonic() + 60.0
        while any(thread.is_alive() for thread in floods):
            assert time.monotonic() < deadline, "a body without an end is read for ever"
            began = time.monotonic()
            assert api.get("/healthz").status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5.0, "others wait for whoever sends most"
    finally:
        for wire in wires:
            wire.close()
        for thread in floods:
            thread.join(20)
    # What the buffers of both ends hold was sent too.
    assert all(MOST_UNREAD_BYTES / 2 < sum(each) < 4 * MOST_UNREAD_BYTES for each in sent)
