"""Ramp the swarm up to its peak, then see how it fares at half of that."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from loadtest.fairline import Fairline
from loadtest.lab.experiment import Desk, Size
from loadtest.lab.swarm.findings import API_PROCESSES, Found, found, found_at_peak, report_on
from loadtest.lab.swarm.plan import PLANS, SLOTS, Plan
from loadtest.lab.swarm.stage import POOL, Serving, hold
from loadtest.report import Report

#: Services, two starts of a Fairline, two of locust.
START_SECONDS = 24.0


class Swarm:
    """The experiment."""

    name = "swarm"
    title = "A swarm of clients that submit and poll"
    question = "How many clients can submit and poll every second, and who pays for it in CPU?"

    def seconds(self, size: Size) -> float:
        """Both stages, and everything that has to be started for them."""
        plan = PLANS[size]
        return START_SECONDS + plan.ramp_seconds + plan.hold_seconds + plan.half_seconds

    def run(self, desk: Desk) -> Report:
        """First the ramp, as its peak says what half of it is."""
        plan = PLANS[desk.size]
        half = None
        with serving(desk, plan, "swarm") as served:
            step = f"ramp to {plan.clients:,} clients"
            stage = hold(desk, served, step, plan.ramp(), plan.look_seconds)
            peak = found_at_peak(stage, plan)
            if not plan.afresh:
                half = at_half(desk, served, plan, peak)
        if half is None:
            with serving(desk, plan, "swarm_half") as served:
                half = at_half(desk, served, plan, peak)
        return report_on(desk, plan, peak, half)


@contextmanager
def serving(desk: Desk, plan: Plan, name: str) -> Iterator[Serving]:
    """A Fairline with its API processes, a scheduler and a worker that ends jobs steadily."""
    desk.step("starting a Fairline")
    fairline = Fairline(
        desk.fleet,
        served_pools=POOL,
        name=name,
        score_seconds=str(plan.score_seconds),
        api_workers=str(API_PROCESSES),
    )
    try:
        # The API is the only one that is waited for: the others start meanwhile.
        fairline.start_scheduler()
        fairline.start_worker(POOL)
        fairline.start_api()
        fairline.await_ready()
        fairline.await_slots(POOL, SLOTS)
        yield Serving.of(fairline)
    finally:
        # All at once: each takes its time to leave in good order.
        names = ("api", f"worker-{POOL}-1", "scheduler")
        with ThreadPoolExecutor(len(names)) as hands:
            list(hands.map(desk.fleet.stop, names))


def at_half(desk: Desk, served: Serving, plan: Plan, peak: Found) -> Found:
    """As many clients as ask for half of what was answered at the peak."""
    stretches = plan.half(peak.summary.rate)
    step = f"{stretches[0].begin:,.0f} clients, half of the peak"
    stage = hold(desk, served, step, stretches, plan.look_seconds)
    return found("at half of the peak", stage, plan.settle_seconds, stage.seconds)
