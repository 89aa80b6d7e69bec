"""Smuggling: requests whose end is not clear, with another request behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from loadtest.attack.attacker import REFUSED
from loadtest.attack.corpus.framing import (
    LENGTHS,
    MISFRAMED,
    NO_HOST_OR_BARE_LINE_FEED,
    NOT_HTTP,
    POST_HEAD,
    TARGETS,
    TELLING,
)
from loadtest.attack.rounds.kinds import Repeated
from loadtest.attack.stage import Stage

#: Behind each: without a key, so that no answer to it may be a success.
SMUGGLED = b"GET /jobs HTTP/1.1\r\nHost: a\r\n\r\n"
#: ``Expect: 100-continue``, and a redirect to the same path without doubled slashes.
UNCLEAR = frozenset({100, 308, *REFUSED})
#: Beyond the limit of the tenant nothing of a body is read.
TOO_MANY = 429


def requests(key: str) -> Iterator[tuple[bytes, frozenset[int]]]:
    """What is sent, and the statuses that its answers may have."""
    own = b"Authorization: Bearer %b\r\n" % key.encode()
    post = POST_HEAD + own
    get = b"Host: a\r\n" + own
    for sent, status in NOT_HTTP:
        yield sent.replace(POST_HEAD, post) + SMUGGLED, frozenset({status, 401})
    for sent in MISFRAMED:
        yield post + sent, frozenset({400})
    for head in NO_HOST_OR_BARE_LINE_FEED:
        yield head + SMUGGLED, frozenset({400})
    for lines in TELLING:
        for framed in (b"", b"Content-Length: 5\r\n"):
            yield post + framed + lines + b"\r\n\r\nhello" + SMUGGLED, UNCLEAR
    for length in LENGTHS:
        yield post + b"Content-Length: " + length + b"\r\n\r\nhello" + SMUGGLED, UNCLEAR
    for target in TARGETS:
        for version in (b"1.1", b"1.0"):
            line = b"GET " + target + b" HTTP/" + version + b"\r\n"
            yield line + get + b"\r\n" + SMUGGLED, UNCLEAR
    yield post + b"x: y\r\n" * 20_000, frozenset({431})
    wide = b"".join(b"x%d: " % n + b"y" * 8_000 + b"\r\n" for n in range(99))
    yield post + wide, frozenset({431})


def smuggling(stage: Stage) -> list[Callable[[], object]]:
    exchange = stage.attacker.exchange
    return [
        partial(exchange, repr(sent[:100]), sent, statuses | {TOO_MANY})
        for sent, statuses in requests(stage.keys.hostile)
    ]


ROUNDS = (Repeated("unclear framing", smuggling),)
