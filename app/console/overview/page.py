"""``/``: whether all is well, and every pool, now and over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.api.http.state import read_state
from app.api.routes.metrics import objectives
from app.api.services import current_services
from app.console.overview.health import judge
from app.console.overview.readings import DEATHS_SECONDS, read_overview, read_samples
from app.console.overview.series import draw
from app.console.page import PageRequest, live_page
from app.scheduler.maintenance.recorder import COARSE_STEP, FINE_STEP


@dataclass(frozen=True, slots=True)
class ChartWindow:
    """A period that the charts show."""

    #: As the address has it.
    name: str
    title: str
    seconds: float
    #: Of the samples that it is drawn from.
    step: int


WINDOWS = (
    ChartWindow("15m", "15 minutes", 900.0, FINE_STEP),
    ChartWindow("24h", "24 hours", 86_400.0, COARSE_STEP),
)
#: Name, title and text for screen readers.
CHARTS = (
    ("depth", "Queue depth", "Queued jobs by pool"),
    ("rates", "In and out", "Jobs submitted and ended per minute by pool"),
    ("utilisation", "Utilisation", "Share of slots in use by pool"),
    ("oldest", "Oldest wait", "How long the oldest queued job had waited, in seconds, by pool"),
)


def read(asked: PageRequest) -> dict[str, Any]:
    window = next((one for one in WINDOWS if one.name == asked.args.get("window")), WINDOWS[0])
    with read_state() as connection:
        drawn = read_samples(connection, window.step, window.seconds)
        fine = drawn
        if window.step != FINE_STEP:
            fine = read_samples(connection, FINE_STEP, DEATHS_SECONDS)
        overview = read_overview(connection, fine, objectives(), current_services().served_pools)
    shown = [card.name for card in overview.cards]
    samples = {pool: drawn[pool] for pool in shown if pool in drawn}
    return {
        "verdict": judge(overview.readings),
        "cards": overview.cards,
        "totals": overview.totals,
        "window": window,
        "windows": WINDOWS,
        "charts": CHARTS,
        "data": draw(samples, window.step, overview.now) if samples else None,
    }


#: As often as there are samples.
OVERVIEW = live_page("/", "console/overview.html", read, every_seconds=float(FINE_STEP))
