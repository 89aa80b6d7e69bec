"""PURE: what a client asks for, drawn from its own chance, and what that must lead to.

Every order carries its expectation in itself: an echo's result is its payload, a score follows
from the application. Those that can be told apart by a tag may be sent without an
Idempotency-Key; the others never are, so that a second row of theirs is always a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

ROLE = "chaos"
#: Beginning of a tag that was sent under a key, and of one that was not.
KEYED, UNKEYED = "k", "u"

#: What a client does, by weight.
HABITS = {
    "application": 26,
    "echo": 12,
    "mark": 10,
    "sleep": 6,
    "fail": 12,
    "count": 4,
    "steps": 8,
    "batch": 6,
    "cancel": 7,
    "look": 6,
    "reuse": 2,
    "replay": 1,
}
#: Failures that are asked for: class and times, by weight. Fewer than half of the runs fail,
#: so that the type is not quarantined; all retries come within about ten seconds.
FAILURES: dict[tuple[str, int], int] = {
    ("APP_ERROR", 0): 8,
    ("APP_ERROR", 1): 3,
    ("APP_ERROR", 2): 1,
    ("TIMEOUT", 1): 1,
    ("TIMEOUT", 2): 1,
    ("RESOURCE_VIOLATION", 1): 1,
    ("RESOURCE_VIOLATION", 2): 1,
    ("DEPENDENCY", 1): 2,
    ("DEPENDENCY", 2): 1,
    ("POISON", 1): 1,
    ("PERMANENT", 1): 2,
}
#: More than fits into a row: lies in the blob store.
LARGE_CHARACTERS = 70_000
MOST_IN_A_BATCH = 25


@dataclass(frozen=True, slots=True)
class Order:
    """One job that somebody wants."""

    type: str
    payload: Any
    #: Wall clock.
    execute_at: float | None = None
    not_after: float | None = None

    def body(self) -> dict[str, Any]:
        """As an item of ``POST /jobs``."""
        return {"type": self.type, "payload": self.payload, **self.times()}

    def times(self) -> dict[str, str]:
        """Its moments, as far as it has any."""
        moments = {"execute_at": self.execute_at, "not_after": self.not_after}
        return {name: rfc3339(at) for name, at in moments.items() if at is not None}


@dataclass(frozen=True, slots=True)
class Request:
    """One call to the front door."""

    kind: str
    method: str
    path: str
    body: Any = None
    key: str | None = None
    #: What it orders, in order; None for an item that must be refused.
    orders: tuple[Order | None, ...] = ()


class Orders:
    """An endless stream of requests of one client."""

    def __init__(self, client: int, seed: int) -> None:
        self._chance = Random(f"{seed}/{client}")
        self._client = client
        self._number = 0

    def next(self, now: float, known: Sequence[str]) -> Request:
        """What the client does next; ``known`` are ids it was given, newest last."""
        [kind] = self._chance.choices(list(HABITS), list(HABITS.values()))
        match kind:
            case "application":
                return self._application(now)
            case "batch":
                return self._batch(now)
            case "cancel" | "look" if known:
                method = "DELETE" if kind == "cancel" else "GET"
                return Request(kind, method, f"/jobs/{self._recent(known)}")
            case "replay":
                filters = {"type": "fail"}
                return Request(kind, "POST", "/dead-letters/replay", {"filter": filters})
            case "reuse":
                return self.single(self._order("echo", now, keyed=True), keyed=True, kind=kind)
            case "cancel" | "look":
                kind = "echo"
        keyed = kind in ("fail", "count") or self._chance.random() < 0.7
        return self.single(self._order(kind, now, keyed), keyed)

    def crash(self) -> Request:
        """A job that kills whoever runs it."""
        return self.single(Order("crash", {}), keyed=True)

    def single(self, order: Order, keyed: bool, kind: str = "job") -> Request:
        """One job by ``POST /jobs``."""
        key = self._tag(KEYED) if keyed else None
        return Request(kind, "POST", "/jobs", order.body(), key, (order,))

    def _application(self, now: float) -> Request:
        keyed = self._chance.random() < 0.7
        tag = self._tag(KEYED if keyed else UNKEYED)
        work = {"candidate": tag, "role": ROLE, "payload": {"letter": f"I am {tag}."}}
        order = self._timed(Order("score_application", work), now)
        body = {**work, **order.times()}
        key = tag if keyed else None
        return Request("application", "POST", "/applications", body, key, (order,))

    def _batch(self, now: float) -> Request:
        keyed = self._chance.random() < 0.7
        kinds = ("echo", "mark", "sleep", "fail") if keyed else ("echo", "mark", "sleep")
        count = self._chance.randint(1, MOST_IN_A_BATCH)
        orders: list[Order | None] = [
            self._order(self._chance.choice(kinds), now, keyed) for _ in range(count)
        ]
        items = [order.body() for order in orders if order]
        if self._chance.random() < 0.3:
            place = self._chance.randrange(count + 1)
            orders.insert(place, None)
            items.insert(place, {"type": "no-such-type", "payload": {}})
        key = self._tag(KEYED) if keyed else None
        return Request("batch", "POST", "/jobs/batch", {"jobs": items}, key, tuple(orders))

    def _order(self, kind: str, now: float, keyed: bool) -> Order:
        chance, tag = self._chance, self._tag(KEYED if keyed else UNKEYED)
        match kind:
            case "sleep":
                order = Order("sleep", {"seconds": self._duration(), "tag": tag})
            case "mark":
                order = Order("chaos.mark", {"seconds": self._duration(), "tag": tag})
            case "steps":
                pace = round(chance.uniform(0.1, 0.4), 3)
                order = Order(
                    "chaos.steps", {"to": chance.randint(3, 15), "seconds_each": pace, "tag": tag}
                )
            case "count":
                ballast = LARGE_CHARACTERS if chance.random() < 0.2 else 0
                pace = round(chance.uniform(0.05, 0.3), 3)
                to = chance.randint(2, 8)
                payload = {"to": to, "seconds_each": pace, "ballast_bytes": ballast}
                order = Order("count", payload)
            case "fail":
                [(failure, times)] = chance.choices(list(FAILURES), list(FAILURES.values()))
                wanted: dict[str, Any] = {"class": failure, "times": times}
                if failure == "DEPENDENCY":
                    wanted["retry_after"] = 1
                return Order("fail", wanted)
            case _:
                large = {"ballast": "x" * LARGE_CHARACTERS} if chance.random() < 0.03 else {}
                order = Order("echo", {"tag": tag, **large})
        return self._timed(order, now)

    def _timed(self, order: Order, now: float) -> Order:
        """Some are for later, some for not too late."""
        luck = self._chance.random()
        execute_at = now + self._chance.uniform(1.0, 6.0) if luck < 0.12 else None
        not_after = None
        if 0.08 < luck < 0.2:
            patience = self._chance.choice((self._chance.uniform(2.0, 5.0), 120.0))
            not_after = (execute_at or now) + patience
        return Order(order.type, order.payload, execute_at, not_after)

    def _duration(self) -> float:
        """Mostly short; one in eight is still running when a lost lease has come back."""
        longest = (4.0, 9.0) if self._chance.random() < 0.125 else (0.05, 2.0)
        return round(self._chance.uniform(*longest), 3)

    def _recent(self, known: Sequence[str]) -> str:
        """Mostly one of the last, which may still be on its way."""
        back = min(len(known), 1 + int(self._chance.expovariate(1 / 10)))
        return known[-back]

    def _tag(self, beginning: str) -> str:
        self._number += 1
        return f"{beginning}-{self._client}-{self._number}"


def rfc3339(at: float) -> str:
    """A moment as the API wants it."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
