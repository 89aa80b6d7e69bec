"""One cell is killed under load: its tenants get a quick 503, those of the other notice nothing.

The cell's PostgreSQL is killed with SIGKILL, all its processes at once, stays away for a while and
is started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.cells.clients import Clients, Sent, p99_ms
from loadtest.cells.installation import CellPlan, installation
from loadtest.cells.judge import fault_bars, fault_notes, judge, settle
from loadtest.cells.sizes import Run
from loadtest.figures import percentile
from loadtest.lab.experiment import Size
from loadtest.lab.pictures import picture
from loadtest.report import Picture, Report, Table, at_least, at_most

TITLE = "One cell is killed under load"
#: The others' p99 may be this many times what it was.
MOST_P99 = 1.3
REFUSAL_SECONDS = 2.0
#: Of each cell.
TENANTS = 6


@dataclass(frozen=True, slots=True)
class Plan:
    per_second: float
    before_seconds: float
    away_seconds: float
    after_seconds: float


PLANS = {
    Size.FULL: Plan(80.0, 60.0, 60.0, 30.0),
    Size.QUICK: Plan(50.0, 15.0, 20.0, 10.0),
    Size.MINI: Plan(20.0, 3.0, 4.0, 3.0),
}


def run(run: Run) -> Report:
    plan = PLANS[run.size]
    with installation("cells-killed", [CellPlan("cell-1"), CellPlan("cell-2")]) as made:
        living, dying = made.cells.values()
        others = [made.customer(f"living-{number}", living) for number in range(TENANTS)]
        victims = [made.customer(f"dying-{number}", dying) for number in range(TENANTS)]
        everybody = [each for pair in zip(others, victims, strict=True) for each in pair]
        port = made.start_api(workers=1)
        # Not repeated: what piles up during the outage would burden the other cell's tenants.
        clients = Clients(everybody, {"": port}, plan.per_second, repeat=False)
        with clients.running():
            run.wait("warming up", plan.before_seconds / 3)
            began = time.time()
            run.wait("both cells there", plan.before_seconds)
            killed = time.time()
            dying.postgres.kill()
            run.wait("one cell killed", plan.away_seconds)
            back = time.time()
            dying.restart_database()
            run.wait("it is back", plan.after_seconds)
        ended = time.time()
        settle(made.cells.values())
        faults = judge(list(made.cells.values()), clients.accepted, made.witness)
        # A run whose cell died under it is repeated: that is what leases are for.
        faults.pop("run twice")
        # What was committed without an answer is nobody's to count.
        faults.pop("admitted twice")
    names = [each.name for each in others], [each.name for each in victims]
    stretches = {"before": (began, killed), "away": (killed, back), "after": (back, ended)}
    found = {
        (side, stretch): clients.of(who, *between)
        for side, who in zip(("others", "victims"), names, strict=True)
        for stretch, between in stretches.items()
    }
    draw(run.folder / "latency.png", clients.sent, set(names[0]), began, (killed, back))
    return report(plan, found, faults, clients)


def refusals(sent: Sequence[Sent]) -> list[float]:
    """How long each 503 took."""
    return [one.answer_seconds for one in sent if one.status != 202]


def report(
    plan: Plan,
    found: dict[tuple[str, str], list[Sent]],
    faults: dict[str, list[str]],
    clients: Clients,
) -> Report:
    before, away = found["others", "before"], found["others", "away"]
    ratio = p99_ms(away) / max(1.0, p99_ms(before))
    refused = refusals(found["victims", "away"])
    accepted = [one for one in found["victims", "away"] if one.status == 202]
    lines = [
        (
            f"{side}, {stretch}",
            f"{len(sent):,}",
            f"{sum(one.status == 202 for one in sent):,}",
            f"{sum(one.status == 503 for one in sent):,}",
            f"{p99_ms(sent):.0f}",
            f"{max((one.answer_seconds for one in sent), default=0.0):.2f}",
        )
        for (side, stretch), sent in found.items()
    ]
    headings = ("", "requests", "202", "503", "p99 ms", "slowest answer s")
    return Report(
        name="cells-killed",
        title=TITLE,
        findings=[
            f"With one of two cells killed, the p99 of the other tenants is {p99_ms(away):.0f} ms"
            f" instead of {p99_ms(before):.0f} ms; the dead cell's callers got"
            f" {len(refused):,} times 503, in {max(refused, default=0.0):.2f} s at most"
            f" and {percentile(refused, 0.5) * 1000:.0f} ms in the middle."
        ],
        pictures=[Picture("latency.png", "Latency of submissions while a cell is killed")],
        tables=[Table("Submissions", headings, lines)],
        bars=[
            at_most("p99 of other tenants, of what it was", ratio, MOST_P99, " x"),
            at_most("other tenants' refused submissions", len(refusals(away))),
            at_most(
                "slowest 503 to the dead cell's tenants",
                max(refused, default=99.0),
                REFUSAL_SECONDS,
                " s",
            ),
            at_most("answers other than 202 and 503", len(clients.strange)),
            at_most("requests without an answer", clients.unanswered),
            *fault_bars(faults),
            at_least(
                "accepted",
                len(clients.accepted),
                0.9 * plan.per_second * (plan.before_seconds + plan.after_seconds),
            ),
        ],
        notes=[
            f"{plan.per_second:g} submissions per second of {2 * TENANTS} tenants, each sent once."
            f" {len(accepted):,} submissions of the dead cell's tenants were accepted in the moment"
            " before it was gone.",
            *fault_notes(faults),
            *clients.strange[:3],
        ],
        data={"faults": faults, "table": [list(line) for line in lines]},
    )


def draw(
    file: Path, sent: Sequence[Sent], others: set[str], began: float, away: tuple[float, float]
) -> None:
    """Latency of every request over time."""
    with picture(file, inches_high=3.6) as axis:
        for label, mine in (("other cell", True), ("killed cell", False)):
            points = [one for one in sent if (one.tenant in others) == mine]
            axis.plot(
                [one.due_at - began for one in points],
                [max(1.0, 1000 * one.answer_seconds) for one in points],
                ".",
                ms=2.5,
                label=label,
            )
        axis.axvspan(*(moment - began for moment in away), color="#fee2e2", zorder=0)
        axis.set(yscale="log", xlabel="seconds", ylabel="answer, ms")
        axis.set_title("Answers to submissions; the cell was away in the shaded time")
        axis.legend(loc="upper left", markerscale=4)
