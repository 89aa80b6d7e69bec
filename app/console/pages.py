"""What the console's menu lists; importing this module imports every page of the console."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import app.console

#: Path, name and icon of what the console's menu lists.
NAVIGATION = (
    ("/", "Overview", "overview"),
    ("/console/leaderboard", "Leaderboard", "leaderboard"),
    ("/console/jobs", "Jobs", "jobs"),
    ("/console/dead-letters", "Dead letters", "dead-letters"),
    ("/console/tenants", "Tenants", "tenants"),
    ("/console/workers", "Workers", "workers"),
    ("/console/schedules", "Schedules", "schedules"),
    ("/console/limits", "Circuits and quotas", "limits"),
    ("/console/audit", "Audit log", "audit"),
)
#: The same, where there are cells.
OF_CELLS = (("/console/cells", "Cells", "cells"),)
#: Path and name of what is beside the menu: empty until somebody has run the lab.
ELSEWHERE = (("/console/lab", "Load lab"),)

# Pages and actions register themselves when they are imported.
for module in walk_packages(app.console.__path__, "app.console."):
    import_module(module.name)
