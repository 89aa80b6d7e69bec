"""``/console/cells``: every cell, what it has and does, and which one the console shows."""

from __future__ import annotations

from typing import Any

from app.api.routes.overview import cells_here, sum_figures
from app.api.services import current_services
from app.console.page import PageRequest, live_page


def read(_: PageRequest) -> dict[str, Any]:
    cells = cells_here()
    found = [] if cells is None else list(cells.read())
    figures = [one.figures for one in found if one.figures is not None]
    return {
        "cells": found,
        "total": sum_figures(figures),
        "missing": len(found) - len(figures),
        "shown": "" if cells is None else cells.name_of(current_services().cell),
    }


CELLS_PAGE = live_page("/console/cells", "console/cells.html", read, every_seconds=5.0)
