"""The two kinds of rounds: requests that are repeated, and connections that are held."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from loadtest.attack.stage import Stage

#: Between two pieces that are added to a held connection.
PIECE_SECONDS = 0.25
#: How long the beginning of an answer is waited for at the end.
LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a round lasts, and the part of its connections that is opened."""

    seconds: float
    share: float = 1.0
    #: Of a list of requests each of which is to be sent once, one in so many is.
    one_in: int = 1

    def of(self, connections: int) -> int:
        return max(2, round(self.share * connections))


@dataclass(frozen=True, slots=True)
class Repeated:
    """Calls that are made by a few clients, all of them once and again while there is time."""

    #: In a few words, as the report has it.
    name: str
    calls: Callable[[Stage], Sequence[Callable[[], object]]]
    clients: int = 6
    #: Of all clients; 0: as many as they get.
    per_second: float = 0.0

    def run(self, stage: Stage, scale: Scale) -> None:
        calls = self.calls(stage)[:: scale.one_in]
        stage.attacker.repeat(calls, scale.of(self.clients), scale.seconds, self.per_second)


@dataclass(frozen=True, slots=True)
class Held:
    """Connections that are opened, begin a request each, and stay."""

    name: str
    connections: int
    #: What the connections begin with, in turns.
    begun: Callable[[Stage], Sequence[bytes]]
    #: What each of them adds again and again.
    more: bytes = b""
    #: Bytes that the client's kernel keeps of an answer; 0: as many as it likes.
    room: int = 0
    allowed: Collection[int] | None = None

    def run(self, stage: Stage, scale: Scale) -> None:
        until = time.monotonic() + scale.seconds
        count, begun = scale.of(self.connections), self.begun(stage)
        with stage.attacker.held(count, begun, self.room) as wires:
            while (left := until - time.monotonic()) > 0:
                for wire in wires if self.more else ():
                    with suppress(OSError):
                        wire.sendall(self.more)
                time.sleep(min(left, PIECE_SECONDS))
            stage.check_victim_stream()
            for wire in wires:
                received = b""
                with suppress(OSError):
                    wire.settimeout(LOOK_SECONDS)
                    received = wire.recv(self.room or 65_536)
                stage.attacker.note(self.name, received, self.allowed)


Round = Repeated | Held
