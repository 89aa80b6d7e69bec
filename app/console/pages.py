"""Imports every page of the console, and lists those that its menu leads to."""

from __future__ import annotations

from app.console import limits  # noqa: F401
from app.console.jobs import actions, dead_letters, job, page  # noqa: F401
from app.console.lab import page as lab_page  # noqa: F401
from app.console.leaderboard import actions as submission  # noqa: F401
from app.console.leaderboard import candidate  # noqa: F401
from app.console.overview import page as overview_page  # noqa: F401
from app.console.schedules import actions as schedule_actions  # noqa: F401
from app.console.schedules import page as schedules_page  # noqa: F401
from app.console.tenant_page import job as tenant_job  # noqa: F401
from app.console.tenant_page import page as tenant_page  # noqa: F401
from app.console.tenants import one  # noqa: F401
from app.console.workers import page as workers_page  # noqa: F401

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
    ("/console/lab", "Load lab", "lab"),
)
