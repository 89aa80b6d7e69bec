"""Whether an attack cost others anything: the bars and tables of the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.report import Bar, Picture, Report, Table, at_most

TITLE = "A hostile client"
#: Memory of the API's processes, of what they had when idle after the warm-up.
MOST_MEMORY = 1.3
#: The victim's p99 during a round, of its p99 before.
MOST_SLOWER = 2.0
#: … but a p99 below this is no failure: attacker, victim and the whole stack share the machine's
#: cores, so that a few milliseconds become several times as many without a fault of the server.
P99_FLOOR_MS = 100.0


@dataclass(frozen=True, slots=True)
class Attacked:
    """One round, as it was measured."""

    name: str
    #: By the monotonic clock.
    began: float
    ended: float
    connections: int
    #: Answers by status, and connections that ended without one.
    statuses: Mapping[int, int]
    closed: int
    server_errors: int
    served: Sequence[str]
    leaks: Sequence[str]
    #: The most memory of the API's processes.
    memory_mb: float
    #: Of the victim's requests, milliseconds, and their number.
    p50_ms: float
    p99_ms: float
    requests: int


@dataclass(slots=True)
class Measured:
    """A whole run."""

    #: Of the API's processes, idle after the warm-up.
    idle_mb: float
    #: Of the victim alone.
    before_p50_ms: float
    before_p99_ms: float
    rounds: list[Attacked]
    #: Jobs of the victim that were accepted, and those of them that did not succeed.
    accepted: int = 0
    unsettled: int = 0
    #: Requests of the victim that were not served, and streams that it was refused.
    unserved: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    #: Paths that are answered differently than before, and whether things were changed.
    different: list[str] = field(default_factory=list)
    changed: bool = False
    #: API processes that are gone, and errors in their log that nobody foresaw.
    replaced: int = 0
    log_errors: int = 0
    #: Memory of the API's processes at the end.
    end_mb: float = 0.0

    @property
    def allowed_p99_ms(self) -> float:
        return max(MOST_SLOWER * self.before_p99_ms, P99_FLOOR_MS)


def bars_of(measured: Measured) -> list[Bar]:
    rounds = measured.rounds
    most = max((one.memory_mb for one in rounds), default=0.0)
    slowest = max((one.p99_ms for one in rounds), default=0.0)
    return [
        at_most("memory of the API, of idle", most / measured.idle_mb, MOST_MEMORY, " x"),
        at_most("the victim's p99, worst round", slowest, measured.allowed_p99_ms, " ms"),
        at_most("answers of 500 and the like", sum(one.server_errors for one in rounds)),
        at_most("answers with something of the victim's", sum(len(one.leaks) for one in rounds)),
        at_most("requests served that must not be", sum(len(one.served) for one in rounds)),
        at_most("things of the victim that were changed", float(measured.changed)),
        at_most("requests of the victim not served", len(measured.unserved + measured.denied)),
        at_most("jobs of the victim lost", measured.unsettled),
        at_most("paths answered differently at the end", len(measured.different)),
        at_most("API processes replaced", measured.replaced),
        at_most("unexpected errors in the API's log", measured.log_errors),
    ]


def answers(statuses: Mapping[int, int], closed: int) -> str:
    """Counts by status in one cell, the most frequent first."""
    ordered = sorted(statuses.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} × {status}" for status, count in ordered[:4]]
    if len(ordered) > 4:
        shown.append(f"{sum(count for _, count in ordered[4:]):,} others")
    return ", ".join([*shown, *([f"{closed:,} closed"] if closed else [])]) or "none"


def round_table(measured: Measured) -> Table:
    headings = ("round", "connections", "answers", "memory", "victim's p50", "p99")
    before = (
        *("(before)", "", "", f"{measured.idle_mb:.0f} MB"),
        *(f"{measured.before_p50_ms:.1f} ms", f"{measured.before_p99_ms:.1f} ms"),
    )
    cells = [
        (
            one.name,
            f"{one.connections:,}",
            answers(one.statuses, one.closed),
            f"{one.memory_mb:.0f} MB",
            f"{one.p50_ms:.1f} ms",
            f"{one.p99_ms:.1f} ms",
        )
        for one in measured.rounds
    ]
    return Table("Rounds", headings, [before, *cells])


def findings_of(measured: Measured) -> list[str]:
    answered = sum(sum(one.statuses.values()) for one in measured.rounds)
    sentence = (
        f"{answered:,} answers to a hostile client in {len(measured.rounds)} rounds; the victim had"
        f" {measured.accepted:,} jobs accepted, {measured.unsettled} of them did not succeed"
    )
    wrong = [
        *(f"{one.name}: served {each}" for one in measured.rounds for each in one.served),
        *(f"{one.name}: the marker in {each}" for one in measured.rounds for each in one.leaks),
        *(f"the victim was refused {each}" for each in measured.denied + measured.unserved[:10]),
        *(f"at the end {each}" for each in measured.different),
    ]
    return [sentence, *wrong]


def judge(measured: Measured, picture: str = "") -> Report:
    data: dict[str, Any] = asdict(measured)
    caption = "Memory of the API's processes and the victim's p99, by round"
    return Report(
        "attack",
        TITLE,
        findings=findings_of(measured),
        pictures=[Picture(picture, caption)] if picture else [],
        tables=[round_table(measured)],
        bars=bars_of(measured),
        notes=[
            "Memory is the kernel's own peak of the resident size in each round, added up over the"
            " API's processes. The victim's p99 may be twice that before, and"
            f" {P99_FLOOR_MS:.0f} ms in any case: everything shares the same cores."
        ],
        data=data,
    )
