"""The report of a simulated day: sentences, tables and bars."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.report import Bar, Report, Table, at_most
from loadtest.simulation.breaking import Ladder, Trial
from loadtest.simulation.outcome import Outcome
from loadtest.simulation.waits import Why, quantile
from loadtest.simulation.world import OBJECTIVES, POOL_NAMES, TIERS

#: Part of a saturated pool's slot time by which the tenants of a tier may be off.
MOST_SHARE_ERROR = 0.02


@dataclass(slots=True)
class Found:
    """All runs that a report is about."""

    day: Outcome
    #: The fullest cell with the autoscaler's defaults; and with too few workers for the peak.
    shipped: Outcome | None = None
    crowded: Outcome | None = None
    #: One for each thing that was made worse.
    ladders: list[Ladder] = field(default_factory=list)


def judge(found: Found) -> Report:
    return Report(
        "simulation",
        "Two billion jobs per day, simulated",
        findings=findings(found),
        tables=tables(found),
        bars=bars(found),
        data=found.day.data(),
    )


def bars(found: Found) -> list[Bar]:
    day = found.day
    checked = [
        at_most(f"{pool}: p99 to start", day.start(pool, 0.99), OBJECTIVES[pool], " s")
        for pool in POOL_NAMES
    ]
    unaccounted = sum(abs(cell.arrived - cell.accounted) for cell in day.cells)
    checked.append(at_most("jobs that are counted twice or not at all", unaccounted))
    checked.append(at_most("jobs refused by the engines", day.refused("engine")))
    if found.crowded is not None:
        for place, tier in enumerate(TIERS):
            error = found.crowded.share("off", place)
            if error is not None:
                claim = f"share error of {tier.value}, of a saturated cell's slot time"
                checked.append(at_most(claim, 100 * error, 100 * MOST_SHARE_ERROR, " %"))
    return checked


def findings(found: Found) -> list[str]:
    day = found.day
    started = ", ".join(
        f"{pool} {seconds(day.start(pool, 0.99))} of {OBJECTIVES[pool]:g} s" for pool in POOL_NAMES
    )
    peak = max(day.arrivals())
    said = [
        f"{day.arrived_in_all / 1e9:.2f} billion jobs of {day.scenario.tenants:,} tenants in "
        f"{day.scenario.cells} cells, {peak:,.0f} per second in the busiest five minutes: 99 of "
        f"100 start within {started}.",
        "Every arrival in the simulated cells is accounted for: "
        f"{day.ended('succeeded'):,} succeeded, {day.ended('dead'):,} are dead letters, "
        f"{day.refused('rate'):,} were refused for their tenant's rate, "
        f"{day.ended('unfinished'):,} are under way at the end.",
        f"Workers take {money(day.worker_money())} (assumed prices), at most "
        f"{max(map(sum, zip(*(day.workers(pool) for pool in POOL_NAMES), strict=True))):,.0f} "
        "at a time.",
        *worst(day),
    ]
    return said + [sentence(ladder) for ladder in found.ladders]


def worst(day: Outcome) -> list[str]:
    """Which objectives were missed in some five minutes, though not over the day."""
    missed = [
        f"{pool} {seconds(day.worst(pool))}"
        for pool in POOL_NAMES
        if day.worst(pool) > OBJECTIVES[pool]
    ]
    if not missed:
        return []
    return [f"In the worst five minutes the p99 is above the objective: {', '.join(missed)}."]


def sentence(ladder: Ladder) -> str:
    held, broke, overloaded = ladder.held, ladder.broke, ladder.overloaded
    kept = f"up to {amount(held, ladder)}" if held else "not at all"
    said = f"{ladder.name.capitalize()}: all objectives hold {kept}"
    if broke is None:
        said += ", the most that was tried"
    else:
        said += f"; at {amount(broke, ladder)} not that of {' and '.join(broke.missed)}"
    if overloaded is not None:
        beyond = f"{ladder.limit:,.0f} jobs per second that its engines are taken to bear"
        said += f". From {amount(overloaded, ladder)} on the cell gets more than the {beyond}"
    return f"{said}."


def amount(trial: Trial, ladder: Ladder) -> str:
    return (
        f"{ladder.unit} {trial.value:g}" if ladder.unit == "×" else f"{trial.value:g} {ladder.unit}"
    )


def tables(found: Found) -> list[Table]:
    made = [starts_table(found.day), tiers_table(found.day), workers_table(found)]
    if found.crowded is not None:
        made.append(shares_table(found.crowded))
    return made + [ladder_table(ladder) for ladder in found.ladders]


def starts_table(day: Outcome) -> Table:
    rows = []
    for pool in POOL_NAMES:
        held, cell = day.waits(pool, Why.HELD), day.waits(pool, Why.CELL)
        total = int(day.waits(pool).sum() + held.sum() + cell.sum())
        rows.append(
            (
                pool,
                f"{OBJECTIVES[pool]:g} s",
                seconds(day.start(pool, 0.5)),
                seconds(day.start(pool, 0.99)),
                seconds(day.worst(pool)),
                f"{100 * int(held.sum()) / total:.2f} %",
                seconds(quantile(held, 0.99)),
                f"{100 * int(cell.sum()) / total:.2f} %",
            )
        )
    headings = (
        "pool", "objective", "p50", "p99", "p99 of the worst 5 min", "held back", "p99 of these",
        "in the lost cell",
    )  # fmt: skip
    return Table("Time to start", headings, rows)


def tiers_table(day: Outcome) -> Table:
    rows = [
        (tier.value, *(seconds(day.start(pool, 0.99, place)) for pool in POOL_NAMES))
        for place, tier in enumerate(TIERS)
    ]
    return Table("p99 to start by tier", ("tier", *POOL_NAMES), rows)


def workers_table(found: Found) -> Table:
    rows = []
    for name, outcome in (("as set", found.day), ("as shipped", found.shipped)):
        if outcome is None:
            continue
        for pool in POOL_NAMES:
            series = outcome.workers(pool)
            rows.append(
                (
                    f"{pool}, {name}",
                    f"{min(series):,.0f}",
                    f"{max(series):,.0f}",
                    f"{outcome.worker_hours(pool):,.0f}",
                    seconds(outcome.start(pool, 0.99)),
                    seconds(outcome.worst(pool)),
                )
            )
    headings = ("autoscaler", "least", "most", "worker-hours", "p99", "p99 of the worst 5 min")
    return Table("Workers", headings, rows)


def shares_table(crowded: Outcome) -> Table:
    """Of all pools, then the error by pool."""

    def percent(part: float | None) -> str:
        return "" if part is None else f"{100 * part:.2f} %"

    rows = [
        (
            tier.value,
            *(percent(crowded.share(what, place)) for what in ("entitled", "got", "off")),
            *(percent(crowded.share("off", place, pool)) for pool in POOL_NAMES),
        )
        for place, tier in enumerate(TIERS)
    ]
    headings = ("tier", "entitled to", "got", "off", *(f"off, {pool}" for pool in POOL_NAMES))
    return Table("Shares of a saturated cell's slot time", headings, rows)


def ladder_table(ladder: Ladder) -> Table:
    rows = [
        (
            amount(one, ladder),
            *(seconds(one.p99[pool]) for pool in POOL_NAMES),
            f"{one.busiest:,.0f}",
            ", ".join(one.missed) or "nothing",
        )
        for one in ladder.trials
    ]
    headings = ("", *(f"{pool}, p99" for pool in POOL_NAMES), "jobs/s of the cell", "missed")
    return Table(ladder.name.capitalize(), headings, rows)


def seconds(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 600 else f"{value / 60:.0f} min"


def money(value: float) -> str:
    return f"${value:,.0f}"
