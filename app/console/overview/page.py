"""``/``: whether all is well, and every pool, now and over time."""

from __future__ import annotations

from typing import Any, NamedTuple

from app.api.http.state import read_state
from app.api.services import current_services
from app.console.overview.health import judge
from app.console.overview.readings import (
    DEATHS_SECONDS,
    read_cards,
    read_readings,
    read_samples,
    totals_of,
)
from app.console.overview.series import draw
from app.console.page import PageRequest, live_page
from app.reads.type_figures import read_type_figures
from app.scheduler.maintenance.recorder import COARSE_STEP, FINE_STEP


class ChartWindow(NamedTuple):
    """A period that the charts show."""

    #: In the address.
    name: str
    title: str
    seconds: float
    #: Of the samples that it is drawn from.
    step: int


WINDOWS = (
    ChartWindow("15m", "15 minutes", 900.0, FINE_STEP),
    ChartWindow("24h", "24 hours", 86_400.0, COARSE_STEP),
)
#: Job types that are listed, those with most runs first.
MOST_TYPES = 30
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
        now, cards = read_cards(connection, fine, current_services().served_pools)
        readings = read_readings(connection, cards)
        types = read_type_figures(connection)
    samples = {card.name: drawn[card.name] for card in cards if card.name in drawn}
    return {
        "verdict": judge(readings),
        "cards": cards,
        "totals": totals_of(cards),
        "types": types[:MOST_TYPES],
        "more_types": max(0, len(types) - MOST_TYPES),
        "window": window,
        "windows": WINDOWS,
        "charts": CHARTS,
        "data": draw(samples, window.step, int(now.timestamp())) if samples else None,
    }


#: As often as there are samples.
OVERVIEW = live_page("/", "console/overview.html", read, every_seconds=float(FINE_STEP))
