"""How long pages of the console take to load in a real browser that has nothing of them."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loadtest.console_rows import Screen
from loadtest.pictures.camera import opened_camera

#: What is loaded in a browser, and how often.
LOADED = ("/", "/console/jobs", "/console/tenants")
LOADS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What a visitor waits for, in milliseconds."""

    #: The page, ready to be used; and its charts.
    loaded: float
    drawn: float


def time_loads(base: str, screen: Screen) -> dict[str, Load]:
    """Pages in a real browser with an empty cache: the medians of some loads."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, opened_camera(base, Path(folder)) as camera:
        for number in screen.steps("loading pages in a browser", len(LOADED)):
            taken = [camera.load_milliseconds(LOADED[number]) for _ in range(LOADS)]
            loaded, drawn = zip(*taken, strict=True)
            found[LOADED[number]] = Load(statistics.median(loaded), statistics.median(drawn))
    return found
