"""What a soak found: curves, how flat they are, bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.bars import Bar
from loadtest.lab.experiment import Size
from loadtest.lab.sampling import Row
from loadtest.lab.soak.flatness import Growth, Point, allowance, growth, tail_of_third
from loadtest.report import Table

ACCEPTED = 202
#: Memory of a process may grow by this share of itself, or by what counts as nothing.
MEMORY_SHARE, MEMORY_MB = 0.05, 10.0
#: The same for what retention empties.
TABLES_SHARE, TABLES_MB = 0.10, 2.0
#: The tail at the end, of that at the beginning.
TAIL_RATIO = 1.2
#: Differences at the front door that nobody can tell from the machine's own.
DOOR_SECONDS = 0.005
#: The leaderboard: a scored application is kept for ever, on purpose.
KEPT_FOR_EVER = ("applications",)
#: RabbitMQ's memory is its own affair: shown, not judged.
JUDGED = ("api", "scheduler", "worker", "postgres")


@dataclass(frozen=True, slots=True)
class Soak:
    """Everything that was seen."""

    seconds: float
    per_second: float
    #: Of latencies and other percentiles over time.
    bucket_seconds: float
    #: From the intended start of a submission to its score, by the intended start.
    scored: Sequence[Point]
    #: To the front door's answer.
    door: Sequence[Point]
    refused: int
    #: Accepted, and without a score at the end of all waiting.
    lost: int
    #: Megabytes over time by part of the system.
    memory: dict[str, list[Point]]
    #: By table.
    tables: dict[str, list[Point]]
    blobs: list[Point]
    dead_rows: list[Point]
    #: Once a second: waiting, running and so on.
    rows: Sequence[Row]

    @property
    def emptied(self) -> list[Point]:
        """All tables that retention keeps small, together."""
        chosen = [points for name, points in self.tables.items() if name not in KEPT_FOR_EVER]
        return [
            (at_once[0][0], sum(value for _, value in at_once))
            for at_once in zip(*chosen, strict=True)
        ]


def growths(soak: Soak) -> dict[str, Growth]:
    """The growth of every curve in the second half, in megabytes."""
    return {
        **{f"memory: {name}": growth(points) for name, points in soak.memory.items()},
        "tables that retention empties": growth(soak.emptied),
        **{
            f"table: {name}": growth(points)
            for name, points in sorted(soak.tables.items())
            if (points and points[-1][1] >= 1.0) or name in KEPT_FOR_EVER
        },
        "blobs": growth(soak.blobs),
    }


def table(soak: Soak) -> Table:
    """Every curve by its level and its growth."""
    return Table(
        "Second half",
        ("", "level MB", "grown MB", "grown %", "MB an hour"),
        [
            (
                name,
                f"{each.level:.1f}",
                f"{each.grown:+.2f}",
                f"{100 * each.share:+.1f}",
                f"{each.per_hour:+.1f}",
            )
            for name, each in growths(soak).items()
        ],
    )


def tails(soak: Soak) -> Table:
    """Latency by the third of the time."""
    return Table(
        "Latency by third",
        ("", "first", "second", "third"),
        [
            (
                "submit to scored p50, s",
                *(f"{tail_of_third(soak.scored, soak.seconds, n, 0.5):.3f}" for n in range(3)),
            ),
            (
                "submit to scored p99, s",
                *(f"{tail_of_third(soak.scored, soak.seconds, n, 0.99):.3f}" for n in range(3)),
            ),
            (
                "front door p95, ms",
                *(
                    f"{1000 * tail_of_third(soak.door, soak.seconds, n, 0.95):.1f}"
                    for n in range(3)
                ),
            ),
        ],
    )


def bars(soak: Soak, size: Size) -> list[Bar]:
    """What must be seen; a short run shows only that nothing goes wrong."""
    losses = [
        Bar("submissions refused", soak.refused, "<=", 0),
        Bar("accepted and not scored", soak.lost, "<=", 0),
    ]
    if size is not Size.FULL:
        return losses
    first, last = (tail_of_third(soak.scored, soak.seconds, n, 0.99) for n in (0, 2))
    door_first, door_last = (1000 * tail_of_third(soak.door, soak.seconds, n, 0.95) for n in (0, 2))
    return [
        *(memory_bar(name, growth(soak.memory[name])) for name in JUDGED),
        level_bar("tables that retention empties", growth(soak.emptied)),
        level_bar("blobs", growth(soak.blobs)),
        Bar(
            "submit to scored p99, last third of the first third's",
            *(last / first if first else float(bool(last)), "<=", TAIL_RATIO, " x"),
        ),
        Bar(
            "front door p95 in the last third (1.2 x the first's, or 5 ms more)",
            *(door_last, "<=", max(TAIL_RATIO * door_first, door_first + 1000 * DOOR_SECONDS)),
            " ms",
        ),
        *losses,
    ]


def memory_bar(name: str, grown: Growth) -> Bar:
    """5 % or 10 MB in the second half."""
    allowed = allowance(grown.level, MEMORY_SHARE, MEMORY_MB)
    return Bar(f"{name}: memory grown in the second half", grown.grown, "<=", allowed, " MB")


def level_bar(name: str, grown: Growth) -> Bar:
    """10 % or 2 MB in the second half."""
    allowed = allowance(grown.level, TABLES_SHARE, TABLES_MB)
    return Bar(f"{name}: grown in the second half", grown.grown, "<=", allowed, " MB")


def findings(soak: Soak) -> list[str]:
    """The story."""
    all_of_them = growths(soak)
    judged = {name: all_of_them[f"memory: {name}"] for name in JUDGED if name in soak.memory}
    most = max(judged, key=lambda name: judged[name].grown)
    emptied = all_of_them["tables that retention empties"]
    first, last = (tail_of_third(soak.scored, soak.seconds, n, 0.99) for n in (0, 2))
    lasted = f"{soak.seconds / 60:g} minutes" if soak.seconds >= 120 else f"{soak.seconds:g} s"
    return [
        f"{lasted} at {soak.per_second:.2f}/s, 70 % of what one worker can score: "
        f"{len(soak.scored):,} applications were scored, {soak.refused} refused, {soak.lost} lost.",
        f"In the second half the part whose memory changed most, {most}, went by "
        f"{judged[most].grown:+.1f} MB ({100 * judged[most].share:+.1f} %); the tables that "
        f"retention empties stood at {emptied.level:.1f} MB and went by {emptied.grown:+.1f} MB.",
        f"p99 from submission to score was {first:.2f} s in the first third and {last:.2f} s in "
        "the last.",
    ]


def figures(soak: Soak) -> dict[str, Any]:
    """For machines."""
    return {
        "seconds": soak.seconds,
        "per_second": round(soak.per_second, 3),
        "scored": len(soak.scored),
        "refused": soak.refused,
        "lost": soak.lost,
        "growth_mb": {
            name: {"level": round(each.level, 2), "grown": round(each.grown, 3)}
            for name, each in growths(soak).items()
        },
        "p99_seconds_by_third": [
            round(tail_of_third(soak.scored, soak.seconds, n, 0.99), 3) for n in range(3)
        ],
        "door_p95_seconds_by_third": [
            round(tail_of_third(soak.door, soak.seconds, n, 0.95), 4) for n in range(3)
        ],
    }
