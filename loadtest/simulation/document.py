"""The text of ``docs/simulation.md``, with the figures of a run."""

from __future__ import annotations

from app.policy.tier_limits import TIER_LIMITS
from loadtest.report import Table, markdown
from loadtest.simulation.admission import FLOOD_PER_SECOND
from loadtest.simulation.breaking import BEFORE_SECONDS, RISE_SECONDS, SATURATED
from loadtest.simulation.drawing import BREAKS, STARTS, WORKERS
from loadtest.simulation.failures import FAILED_SHARE, WORKER_LIFE_SECONDS
from loadtest.simulation.pool import DEVIATIONS, TURNS
from loadtest.simulation.report import (
    Found,
    findings,
    ladder_table,
    money,
    seconds,
    sentence,
    shares_table,
    starts_table,
    tiers_table,
    workers_table,
)
from loadtest.simulation.waits import START_SECONDS, TURN_SECONDS
from loadtest.simulation.world import (
    KINDS,
    NOISE,
    NOISE_SECONDS,
    RANKS,
    SCALE_MIN,
    SCALE_POLICY,
    Tenant,
    World,
)
from loadtest.sizing.inputs import CORE_HOUR, SCHEDULER_PER_SECOND, WORKER_CORES

POLICIES = {
    "whose job is next": "`app/policy/fairshare`: `FairQueue`, `fewest_first`, `note_turn`, tiers",
    "how many are in flight": "`app/policy/window.py`, `pool_meter.py`",
    "when a retry may be queued": "`app/policy/pacing.py`",
    "whether a failed job runs again, and when": "`tasks/retry/decision.py`",
    "whether a dependency is called": "`tasks/retry/circuit.py`, `app/policy/quota.py`",
    "who submits too fast": "`app/policy/rate_limit.py`, `tier_limits.py`",
    "how many workers there should be": "`app/policy/scaling.py`, read as the autoscaler does",
}


def document(found: Found) -> str:
    policies = [f"| {what} | {where} |" for what, where in POLICIES.items()]
    parts = [
        opening(found),
        "## What came out",
        outcome(found),
        "## What breaks first",
        breaking(found),
        "## The world",
        world(found),
        "## Whose decisions these are",
        "The scheduler and the simulation call the same objects:",
        "\n".join(["| what is decided | by |", "|---|---|", *policies]),
        "## What is simplified",
        simplified(found),
    ]
    return "\n\n".join(parts) + "\n"


def table_text(made: Table) -> str:
    return "\n".join(markdown(made))


def opening(found: Found) -> str:
    day = found.day
    other = next(cell for cell in day.cells if cell.number != day.world.lost)
    return (
        "# Two billion jobs per day, simulated\n\n"
        "`make simulation` runs a day of virtual time with the product's own policy objects: "
        f"{day.scenario.tenants:,} tenants, {day.scenario.peak_per_second:,.0f} arrivals per "
        f"second at the peak, {day.scenario.cells} cells, one of which is lost at the peak. No "
        "process, database or broker takes part: it shows what the policies do at this size, not "
        "what the engines bear. That is measured on one machine "
        "([performance.md](performance.md)) and computed in [sizing.md](sizing.md). The same "
        "seed gives the same numbers; this page is written by `python -m loadtest.simulation "
        f"--docs` (seed {day.scenario.seed}), and a shorter run is part of `make test`.\n\n"
        f"{len(day.cells)} of the cells are simulated: the lost one, the fullest, the emptiest and "
        "others between them. Cells share nothing, so those that were not simulated are taken to "
        "be like the ones that were and not lost: by load, each of these counts "
        f"{day.stands_for(other):.2f} times in what is said of all cells."
    )


def outcome(found: Found) -> str:
    assert found.crowded is not None and found.shipped is not None
    day = found.day
    lost = next(cell for cell in day.cells if cell.number == day.world.lost)
    recovered = lost.recovered_seconds
    back = "was not over at the end" if recovered is None else f"took {seconds(recovered)}"
    said = [f"* {one}" for one in findings(Found(day))]
    said.append(
        f"* The lost cell ({lost.rate:,.0f} jobs per second at the peak) is away for "
        f"{seconds(day.scenario.lost_seconds)}. {lost.lost_runs:,} runs were lost with it and ran "
        "again. What its tenants submitted meanwhile was taken in elsewhere; after its return, "
        f"with all workers to be started, working it off {back}. These jobs are not part of the "
        "objectives above; those of all other cells are."
    )
    refused = day.failures()
    said.append(
        f"* {sum(refused.values()):,} runs failed: "
        + ", ".join(f"{count:,} {name}" for name, count in sorted(refused.items()))
        + f". The dependency's circuit opened {sum(cell.circuit_opened for cell in day.cells)} "
        f"times in {len(day.cells)} cells."
    )
    return "\n".join(
        [
            *said,
            "",
            f"![Time to start over the day](images/{STARTS})",
            "",
            table_text(starts_table(day)),
            "",
            "Held back are jobs that waited for their dependency's quota or circuit, their "
            "tenant's cap or the slice of free accounts; more workers would not help them.",
            "",
            table_text(tiers_table(day)),
            "",
            f"![Workers over the day and share errors](images/{WORKERS})",
            "",
            table_text(workers_table(found)),
            "",
            '"As set" is the deployment below. "As shipped" is the fullest cell alone '
            f"with the autoscaler's defaults, scaled up to all cells by its load: "
            f"{money(found.shipped.worker_money())} per day instead of "
            f"{money(day.worker_money())}.",
            "",
            f"**Fair share.** A cell with {100 * SATURATED:.0f} % of the slots that the peak "
            "needs, for ten minutes. Compared are tenants that waited at every turn of a "
            "period: how far their slot time was from what their weights entitle them to.",
            "",
            table_text(shares_table(found.crowded)),
        ]
    )


def breaking(found: Found) -> str:
    lines = [
        f"The fullest cell from {BEFORE_SECONDS // 60} minutes before the peak on "
        f"({RISE_SECONDS // 60} where it is about the start of workers), while another one is "
        "lost, with one thing made worse step by step. Engines bear any load here: the tables say "
        "how much that is.",
        "",
        *(f"* {sentence(ladder)}" for ladder in found.ladders),
        "",
        f"![p99 as a part of the objective while one thing is made worse](images/{BREAKS})",
    ]
    for ladder in found.ladders:
        made = ladder_table(ladder)
        lines += ["", f"**{made.title}**", "", table_text(made)]
    return "\n".join(lines)


def world(found: Found) -> str:
    scenario, built = found.day.scenario, found.day.world
    kinds = Table(
        "",
        ("kind", "pool", "mean run", "of all jobs", "dependency"),
        [
            (
                kind.name,
                kind.pool,
                f"{kind.seconds:g} s",
                f"{100 * kind.share:g} %",
                kind.dependency,
            )
            for kind in KINDS
        ],
    )
    rates = sorted(cell.rate for cell in built.cells)
    spread = [tenant for tenant in tenants_of(built) if len(tenant.cells) > 1]
    largest = max(tenants_of(built), key=lambda tenant: tenant.rate)
    ranks = ", ".join(f"{tier.value} up to {100 * last:g} %" for tier, last in RANKS.items())
    return "\n".join(
        [
            f"* **Tenants.** {scenario.tenants:,}, the demand of the nth is n to the power of "
            f"−{scenario.skew:g}; the largest sends {largest.rate:,.0f} jobs per second at the "
            f"peak. Tiers by rank: {ranks}. A tenant's demand moves from minute to minute "
            f"(log-normal, {NOISE:g}, every {NOISE_SECONDS} s), all of them follow the same day: "
            "their peaks coincide.",
            f"* **The day.** {scenario.jobs_per_day / 1e9:g} billion jobs: a night, a working day "
            f"and a peak of {scenario.peak_per_second:,.0f} per second at 14:00, within two hours "
            "from a fifth of it.",
            f"* **Cells.** {scenario.cells}; a tenant lives where the hash of its name and the "
            f"cell is highest, {len(spread)} large ones in as many cells as keep them below "
            f"{100 * scenario.spread_share:.0f} % of one. So cells are meant for {rates[0]:,.0f} "
            f"to {rates[-1]:,.0f} jobs per second at the peak.",
            f"* **What goes wrong.** One cell is lost at the peak for {scenario.lost_seconds} s; "
            "large tenants use their other cells meanwhile. The dependency fails for "
            f"{scenario.outage_seconds} s from 16:00 on, and its quota is "
            f"{100 * scenario.quota_share:.0f} % of what would be called at the peak. "
            f"{scenario.floods} tenants of tier standard submit {FLOOD_PER_SECOND:g} jobs per "
            f"second for half an hour. {100 * FAILED_SHARE:g} % of the runs fail; a worker dies "
            f"every {WORKER_LIFE_SECONDS / 86400:g} days.",
            f"* **Workers** start within {scenario.boot_seconds:g} s. In each cell "
            f"`FAIRLINE_SCALE_MIN` is `{dict(SCALE_MIN)}` and `FAIRLINE_SCALE_POLICY` "
            f"`{dict(SCALE_POLICY)}`.".replace("'", '"'),
            f"* **Money**: ${CORE_HOUR:g} for a core and hour, "
            + ", ".join(f"{cores:g} for a worker of {pool}" for pool, cores in WORKER_CORES.items())
            + "; assumed, and without engines, API and schedulers.",
            "",
            table_text(kinds),
        ]
    )


def tenants_of(built: World) -> list[Tenant]:
    return sorted(
        {tenant for cell in built.cells for tenant in cell.tenants},
        key=lambda tenant: tenant.number,
    )


def simplified(found: Found) -> str:
    scenario = found.day.scenario
    return "\n".join(
        [
            "* **Jobs are counts.** Jobs of one tenant and kind that arrive in the same step are "
            "one number. Arrivals are Poisson, run times exponential around the mean of their "
            "kind. What failed is simulated job by job.",
            f"* **Steps.** While a pool has {DEVIATIONS:g} standard deviations more slots than "
            "its load needs, a step is a second, and every job waits up to "
            f"{1000 * TURN_SECONDS:.0f} ms for a turn of the scheduler and "
            f"{1000 * START_SECONDS:.0f} ms for its start. Otherwise every turn is simulated: "
            f"{TURNS['short']}, {TURNS['medium']} and {TURNS['long']} per second in the three "
            "pools. The express lane is left out, which would save half a turn.",
            "* **Durations are known.** The fair queue is charged the mean of the kind, in "
            "advance and when a run ends; in the product the first runs of a type are a guess.",
            f"* **Engines** take up to {scenario.cell_limit:,.0f} jobs per second in a cell, "
            "without becoming slower before that: an assumption in the middle of our estimate "
            f"for a large server. A scheduler dispatches {SCHEDULER_PER_SECOND:,.0f} per second "
            "(`make lab-cost`). The broker and the network are always there.",
            "* **Cells do not exchange anything.** A tenant in several cells has the weight and "
            "the caps of its tier in each; what it sends to a lost one goes to the others at "
            "once. What was taken in for the lost one comes back as fast as its engines take it.",
            "* **Left out**: priorities, reserved slices, cancellation, schedules, retry budgets, "
            "quarantine and throttles (failures here are independent), lost messages, a change "
            "of leader other than with the cell.",
            "* **Rate limits** are simulated for the tenants that exceed them. All others are "
            f"below {100 * largest_part(found):.0f} % of theirs at the peak.",
        ]
    )


def largest_part(found: Found) -> float:
    """The largest part of its rate limit that a tenant uses which does not flood."""
    return max(
        tenant.rate / limit
        for tenant in tenants_of(found.day.world)
        if (limit := TIER_LIMITS[tenant.tier].submit_per_second) and not tenant.floods
    )
