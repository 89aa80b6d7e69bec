"""Whether an attack cost others anything: the bars and tables of the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from loadtest.attack.attacker import MOST_CORES, Tally
from loadtest.report import Bar, Picture, Report, at_most, table

#: Memory of the API's processes, of what they had when idle after the warm-up.
MOST_MEMORY = 1.3
#: The victim's p99 during a round, of its p99 before.
MOST_SLOWER = 2.0
#: … but a p99 below this is no failure: attacker, victim and the whole stack share the machine's
#: cores, so that a few milliseconds become several times as many without a fault of the server.
P99_FLOOR_MS = 100.0


@dataclass(slots=True)
class Attacked:
    """One round, as it was measured; the first has no attacker."""

    name: str
    #: By the monotonic clock.
    began: float
    ended: float
    #: The most memory of the API's processes.
    memory_mb: float
    tally: Tally = field(default_factory=Tally)
    #: Processor time of the hostile client, per second.
    cores: float = 0.0
    #: Cores that programs used which have nothing to do with it.
    others: float = 0.0
    #: Of the victim's requests.
    p50_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(slots=True)
class Measured:
    """A whole run."""

    #: The victim alone, with the API's memory when idle after the warm-up.
    before: Attacked
    rounds: list[Attacked] = field(default_factory=list)
    #: Jobs of the victim that were accepted, and those of them that did not succeed.
    accepted: int = 0
    unsettled: int = 0
    #: Requests of the victim that were not served, and streams that it was refused.
    unserved: list[str] = field(default_factory=list)
    #: Paths that are answered differently than before, and whether things were changed.
    different: list[str] = field(default_factory=list)
    changed: bool = False
    #: API processes that are gone, and errors in their log that nobody foresaw.
    replaced: int = 0
    log_errors: int = 0

    @property
    def allowed_mb(self) -> float:
        return MOST_MEMORY * self.before.memory_mb

    @property
    def allowed_p99_ms(self) -> float:
        return max(MOST_SLOWER * self.before.p99_ms, P99_FLOOR_MS)


def bars_of(measured: Measured) -> list[Bar]:
    rounds, tallies = measured.rounds, [one.tally for one in measured.rounds]
    most = max(one.memory_mb for one in rounds) / measured.before.memory_mb
    slowest = max(one.p99_ms for one in rounds)
    return [
        at_most("memory of the API, of idle", most, MOST_MEMORY, " x"),
        at_most("the victim's p99, worst round", slowest, measured.allowed_p99_ms, " ms"),
        at_most("answers of 500 and the like", sum(one.server_errors for one in tallies)),
        at_most("answers with something of the victim's", sum(len(one.leaks) for one in tallies)),
        at_most("requests served that must not be", sum(len(one.served) for one in tallies)),
        at_most("things of the victim that were changed", float(measured.changed)),
        at_most("requests of the victim not served", len(measured.unserved)),
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
    return ", ".join([*shown, *([f"{closed:,} closed"] if closed else [])])


COLUMNS: Mapping[str, str | Callable[[Attacked], str]] = {
    "round": "{0.name}",
    "connections": "{0.tally.connections:,}",
    "answers": lambda one: answers(one.tally.statuses, one.tally.closed),
    "its cores": "{0.cores:.2f}",
    "others'": "{0.others:.2f}",
    "memory, MB": "{0.memory_mb:.0f}",
    "the victim's p50, ms": "{0.p50_ms:.1f}",
    "p99, ms": "{0.p99_ms:.1f}",
}


def findings_of(measured: Measured) -> list[str]:
    answered = sum(sum(one.tally.statuses.values()) for one in measured.rounds)
    sentence = (
        f"{answered:,} answers to a hostile client in {len(measured.rounds)} rounds; the victim had"
        f" {measured.accepted:,} jobs accepted, {measured.unsettled} of them did not succeed"
    )
    wrong = [
        *(f"{one.name}: served {each}" for one in measured.rounds for each in one.tally.served),
        *(f"{one.name}: the marker in {it}" for one in measured.rounds for it in one.tally.leaks),
        *(f"the victim was refused {each}" for each in measured.unserved[:10]),
        *(f"at the end {each}" for each in measured.different),
    ]
    return [sentence, *wrong]


def judge(measured: Measured, picture: str) -> Report:
    caption = "Memory of the API's processes and the victim's p99, by round"
    return Report(
        "attack",
        "A hostile client",
        findings=findings_of(measured),
        pictures=[Picture(picture, caption)],
        tables=[table("Rounds", COLUMNS, [measured.before, *measured.rounds])],
        bars=bars_of(measured),
        notes=[
            "Memory is the kernel's own peak of the resident size in each round, added up over the"
            " API's processes. The victim's p99 may be twice that before, and"
            f" {P99_FLOOR_MS:.0f} ms in any case: everything shares the same cores, of which the"
            f" hostile client may use {MOST_CORES:g}. What other programs used slows down both."
        ],
        data=asdict(measured),
    )
