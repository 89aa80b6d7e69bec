"""What clients submit, and what is hit, how and when; all from one seed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
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
#: More than fits into a row: stored as a blob.
LARGE_CHARACTERS = 70_000
MOST_IN_A_BATCH = 25


@dataclass(frozen=True, slots=True)
class Order:
    """One job that a client wants."""

    type: str
    payload: Any
    #: Wall clock.
    execute_at: float | None = None
    not_after: float | None = None

    def body(self) -> dict[str, Any]:
        """As an item of ``POST /jobs``."""
        return {"type": self.type, "payload": self.payload, **self.times()}

    def times(self) -> dict[str, str]:
        moments = {"execute_at": self.execute_at, "not_after": self.not_after}
        return {name: rfc3339(at) for name, at in moments.items() if at is not None}


@dataclass(frozen=True, slots=True)
class Request:
    """One call to the API."""

    kind: str
    method: str
    path: str
    body: Any = None
    key: str | None = None
    #: What it orders, in order; None for an item that must be refused.
    orders: tuple[Order | None, ...] = ()


#: Job types of the kinds that are not named after theirs.
TYPES = {"mark": "chaos.mark", "steps": "chaos.steps", "reuse": "echo"}


def application(candidate: str, role: str) -> dict[str, Any]:
    """The body of a submission."""
    return {"candidate": candidate, "role": role, "payload": {"letter": f"I am {candidate}."}}


class Orders:
    """An endless stream of requests of one client."""

    def __init__(self, client: int, seed: int) -> None:
        self._chance = Random(f"{seed}/{client}")
        self._client = client
        self._number = 0

    def next(self, now: float, known: Sequence[str]) -> Request:
        """What the client does next; ``known`` are ids it was given, newest last."""
        [kind] = self._chance.choices(list(HABITS), list(HABITS.values()))
        if kind in ("cancel", "look"):
            if known:
                method = "DELETE" if kind == "cancel" else "GET"
                return Request(kind, method, f"/jobs/{self._recent(known)}")
            kind = "echo"
        if kind == "replay":
            body = {"filter": {"type": "fail"}}
            return Request(kind, "POST", "/dead-letters/replay", body)
        keyed = kind in ("fail", "count", "reuse") or self._chance.random() < 0.7
        if kind == "application":
            return self._application(now, keyed)
        if kind == "batch":
            return self._batch(now, keyed)
        order = self._order(kind, now, keyed)
        return self._single(order, keyed, kind if kind == "reuse" else "job")

    def crash(self) -> Request:
        return self._single(Order("crash", {}), keyed=True)

    def _single(self, order: Order, keyed: bool, kind: str = "job") -> Request:
        key = self._tag(keyed) if keyed else None
        return Request(kind, "POST", "/jobs", order.body(), key, (order,))

    def _application(self, now: float, keyed: bool) -> Request:
        tag = self._tag(keyed)
        work = application(tag, ROLE)
        order = self._timed(Order("score_application", work), now)
        body = {**work, **order.times()}
        key = tag if keyed else None
        return Request("application", "POST", "/applications", body, key, (order,))

    def _batch(self, now: float, keyed: bool) -> Request:
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
        key = self._tag(keyed) if keyed else None
        return Request("batch", "POST", "/jobs/batch", {"jobs": items}, key, tuple(orders))

    def _order(self, kind: str, now: float, keyed: bool) -> Order:
        order = Order(TYPES.get(kind, kind), self._payload(kind, self._tag(keyed)))
        return order if kind == "fail" else self._timed(order, now)

    def _payload(self, kind: str, tag: str) -> dict[str, Any]:
        chance = self._chance
        match kind:
            case "sleep" | "mark":
                return {"seconds": self._duration(), "tag": tag}
            case "steps":
                pace = round(chance.uniform(0.1, 0.4), 3)
                return {"to": chance.randint(3, 15), "seconds_each": pace, "tag": tag}
            case "count":
                ballast = LARGE_CHARACTERS if chance.random() < 0.2 else 0
                pace = round(chance.uniform(0.05, 0.3), 3)
                return {"to": chance.randint(2, 8), "seconds_each": pace, "ballast_bytes": ballast}
            case "fail":
                [(failure, times)] = chance.choices(list(FAILURES), list(FAILURES.values()))
                later = {"retry_after": 1} if failure == "DEPENDENCY" else {}
                return {"class": failure, "times": times, **later}
        large = {"ballast": "x" * LARGE_CHARACTERS} if chance.random() < 0.03 else {}
        return {"tag": tag, **large}

    def _timed(self, order: Order, now: float) -> Order:
        """Some start later, some expire."""
        luck = self._chance.random()
        execute_at = now + self._chance.uniform(1.0, 6.0) if luck < 0.12 else None
        not_after = None
        if 0.08 < luck < 0.2:
            patience = self._chance.choice((self._chance.uniform(2.0, 5.0), 120.0))
            not_after = (execute_at or now) + patience
        return replace(order, execute_at=execute_at, not_after=not_after)

    def _duration(self) -> float:
        """Mostly short; one in eight still runs when a lost lease has been given to another."""
        longest = (4.0, 9.0) if self._chance.random() < 0.125 else (0.05, 2.0)
        return round(self._chance.uniform(*longest), 3)

    def _recent(self, known: Sequence[str]) -> str:
        """Mostly one of the last, which may not have ended."""
        back = min(len(known), 1 + int(self._chance.expovariate(1 / 10)))
        return known[-back]

    def _tag(self, keyed: bool) -> str:
        self._number += 1
        return f"{KEYED if keyed else UNKEYED}-{self._client}-{self._number}"


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


#: Faults of the services and of the machine, each once in a round, and how long they last.
FAULTS: dict[str, tuple[float, float]] = {
    "row-locks": (2.0, 16.0),
    "table-lock": (2.0, 14.0),
    "terminated-backends": (1.0, 4.0),
    "read-only": (1.0, 8.0),
    "slow-postgres": (2.0, 10.0),
    "slow-rabbitmq": (2.0, 15.0),
    "memory-alarm": (2.0, 10.0),
    "purged-queues": (0.0, 0.0),
    "deleted-queues": (0.0, 0.0),
    "full-disk": (2.0, 20.0),
}
#: What can be hit, and how often in a round.
TARGETS = {
    "api": 1,
    "api-leader": 1,
    "short": 1,
    "medium": 2,
    "long": 1,
    "long-child": 2,
    "scheduler": 2,
    "rabbitmq": 1,
    "postgres": 1,
    "postgres-backend": 1,
    **dict.fromkeys(FAULTS, 1),
}
#: Only a process that the supervisor knows by name gets a stop signal.
RESTARTED = TARGETS.keys() - FAULTS.keys() - {"api", "long-child", "postgres-backend"}
#: The shortest and the longest time between two hits.
PAUSE_SECONDS = (1.5, 5.0)
#: A frozen process is resumed after this long …
FREEZE_SECONDS = (1.0, 40.0)
#: … half of them soon after their leases of 6 to 9 s, when others have just taken over.
OUTLAST_SECONDS = (7.0, 15.0)


class Act(StrEnum):
    KILL = "kill"
    FREEZE = "freeze"
    RESTART = "restart"
    #: A fault of a service or of the machine; the target says which.
    FAULT = "fault"


#: How often each act is done to a process in ten.
ACTS = {Act.KILL: 7, Act.FREEZE: 2, Act.RESTART: 1}


@dataclass(frozen=True, slots=True)
class Hit:
    """One planned kill, freeze, restart or fault."""

    number: int
    #: After the beginning of the run.
    at_seconds: float
    target: str
    act: Act
    #: Chooses among several processes of the kind.
    choice: float
    #: How long a process is frozen, or a fault lasts.
    seconds: float = 0.0

    def __str__(self) -> str:
        much = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.act} {self.target}{much}"


def plan(targets: Sequence[str], seconds: float, seed: int) -> list[Hit]:
    """The hits of a run of ``seconds``; a longer run begins like a shorter one."""
    chance = Random(seed)
    hits: list[Hit] = []
    moment = 0.0
    acts = {target: _acts(target, chance.random()) for target in targets}
    cards = [target for target in targets for _ in range(TARGETS[target])]
    while True:
        for target in chance.sample(cards, len(cards)):
            moment += chance.uniform(*PAUSE_SECONDS)
            choice, frozen = chance.random(), _freeze_seconds(chance)
            if moment > seconds:
                return hits
            act = next(acts[target])
            # Nothing lasts beyond the end: from then on everything must recover.
            left = max(FREEZE_SECONDS[0], seconds - moment)
            lasting = {Act.FREEZE: frozen, Act.FAULT: _fault_seconds(target, choice)}
            hit = Hit(len(hits) + 1, moment, target, act, choice, min(lasting.get(act, 0.0), left))
            hits.append(hit)


def _acts(target: str, seed: float) -> Iterator[Act]:
    """The acts on one target: one shuffled ten after the other, so that none is left out."""
    chance = Random(seed)
    acts = {Act.FAULT: 1} if target in FAULTS else ACTS
    cards = [act for act, count in acts.items() for _ in range(count)]
    while True:
        for act in chance.sample(cards, len(cards)):
            yield act if act is not Act.RESTART or target in RESTARTED else Act.KILL


def _fault_seconds(target: str, choice: float) -> float:
    shortest, longest = FAULTS.get(target, (0.0, 0.0))
    return shortest + choice * (longest - shortest)


def _freeze_seconds(chance: Random) -> float:
    """Often a few seconds, often a little more than a lease, now and then far beyond it."""
    least, most = FREEZE_SECONDS
    anything = float(least * (most / least) ** chance.random())
    return chance.choice((anything, chance.uniform(*OUTLAST_SECONDS)))
