"""One cell is killed under load: its tenants get a quick 503, those of the other notice nothing.

The cell's PostgreSQL is killed with SIGKILL, all its processes at once, stays away for a while and
is started again. Then it is frozen: it neither answers nor refuses, which is worse for who waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from loadtest.cells.clients import Clients, Sent, p99_ms
from loadtest.cells.experiment_run import Run
from loadtest.cells.installation import CellPlan, installation
from loadtest.cells.judge import judge, settle
from loadtest.figures import percentile
from loadtest.lab.experiment import Size
from loadtest.lab.pictures import picture
from loadtest.report import Picture, Report, Table, at_least, at_most, fault_bars, fault_notes

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
    #: Killed, and frozen for as long.
    away_seconds: float
    #: After each of them.
    after_seconds: float


PLANS = {
    Size.FULL: Plan(80.0, 60.0, 60.0, 20.0),
    Size.QUICK: Plan(50.0, 15.0, 15.0, 10.0),
    Size.MINI: Plan(20.0, 3.0, 4.0, 3.0),
}
#: Stretches in which the cell does not answer.
AWAY = ("killed", "frozen")


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
            moments = [time.time()]
            dying.kill_database()
            run.wait("one cell killed", plan.away_seconds)
            moments.append(time.time())
            dying.restart_database()
            run.wait("it is back", plan.after_seconds)
            moments.append(time.time())
            with dying.frozen_database():
                run.wait("one cell frozen", plan.away_seconds)
                moments.append(time.time())
            run.wait("it is back", plan.after_seconds)
            moments.append(time.time())
        settle(made.cells.values())
        faults = judge(list(made.cells.values()), clients.accepted, made.witness)
        # A run whose cell died under it is repeated: that is what leases are for.
        faults.pop("run twice")
        # Nothing is repeated here: what was committed without an answer is in no list of ids.
        faults.pop("admitted twice")
    names = [each.name for each in others], [each.name for each in victims]
    titles = ("before", "killed", "back", "frozen", "back again")
    stretches = dict(zip(titles, pairwise([began, *moments]), strict=True))
    found = {
        (side, stretch): clients.of(who, *between)
        for side, who in zip(("others", "victims"), names, strict=True)
        for stretch, between in stretches.items()
    }
    away = [stretches[name] for name in AWAY]
    draw(run.folder / "latency.png", clients.sent, set(names[0]), began, away)
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
    before = p99_ms(found["others", "before"])
    during = {name: p99_ms(found["others", name]) for name in AWAY}
    refused = {name: refusals(found["victims", name]) for name in AWAY}
    slowest = {name: max(each, default=99.0) for name, each in refused.items()}
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
            f"With one of two cells killed, the p99 of the other tenants is {during['killed']:.0f}"
            f" ms instead of {before:.0f} ms, with its PostgreSQL frozen {during['frozen']:.0f} ms."
            f" The callers of that cell get 503 in {slowest['killed']:.2f} s and"
            f" {slowest['frozen']:.2f} s at most,"
            f" {percentile(refused['frozen'], 0.5) * 1000:.0f} ms in the middle."
        ],
        pictures=[Picture("latency.png", "Latency of submissions while a cell is killed")],
        tables=[Table("Submissions", headings, lines)],
        bars=[
            *(
                at_most(
                    f"p99 of other tenants, of what it was: {name}",
                    p99 / max(1.0, before),
                    MOST_P99,
                    " x",
                )
                for name, p99 in during.items()
            ),
            at_most(
                "other tenants' refused submissions",
                sum(len(refusals(found["others", name])) for name in AWAY),
            ),
            *(
                at_most(f"slowest 503 to the cell's tenants: {name}", most, REFUSAL_SECONDS, " s")
                for name, most in slowest.items()
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
            f"{plan.per_second:g} submissions per second of {2 * TENANTS} tenants, each sent once.",
            *fault_notes(faults),
            *clients.strange[:3],
        ],
        data={"faults": faults, "table": [list(line) for line in lines]},
    )


def draw(
    file: Path,
    sent: Sequence[Sent],
    others: set[str],
    began: float,
    away: Sequence[tuple[float, float]],
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
        for stretch in away:
            axis.axvspan(*(moment - began for moment in stretch), color="#fee2e2", zorder=0)
        axis.set(yscale="log", xlabel="seconds", ylabel="answer, ms")
        axis.set_title(
            "Answers to submissions; in the shaded times the cell was killed, then frozen"
        )
        axis.legend(loc="upper left", markerscale=4)
