"""Which pages there are, and how the console leads to them."""

from __future__ import annotations

from flask import Blueprint

from app.console.docs import docs
from app.console.jobs.actions import jobs_actions
from app.console.jobs.dead_letters import DEAD_LETTERS
from app.console.jobs.job import JOB
from app.console.jobs.job_actions import job_actions
from app.console.jobs.page import JOBS
from app.console.lab.page import EXPERIMENT, LAB, lab
from app.console.leaderboard.actions import leaderboard_actions
from app.console.leaderboard.candidate import CANDIDATE
from app.console.leaderboard.page import LEADERBOARD
from app.console.limits import LIMITS
from app.console.overview.page import OVERVIEW
from app.console.page import LivePage
from app.console.schedules.actions import schedules_actions
from app.console.schedules.page import SCHEDULES
from app.console.tenant_page.actions import tenant_page_actions
from app.console.tenant_page.job import TENANT_JOB
from app.console.tenant_page.page import TENANT_PAGE
from app.console.tenants.one import TENANT
from app.console.tenants.page import TENANTS
from app.console.workers.actions import workers_actions
from app.console.workers.page import WORKERS

#: What keeps itself up to date.
LIVE_PAGES: tuple[LivePage, ...] = (
    WORKERS,
    SCHEDULES,
    LIMITS,
    LAB,
    EXPERIMENT,
    TENANTS,
    TENANT,
    TENANT_PAGE,
    TENANT_JOB,
    OVERVIEW,
    JOBS,
    JOB,
    DEAD_LETTERS,
    LEADERBOARD,
    CANDIDATE,
)
#: What else can be asked and done.
BLUEPRINTS: tuple[Blueprint, ...] = (
    docs,
    tenant_page_actions,
    workers_actions,
    schedules_actions,
    lab,
    jobs_actions,
    job_actions,
    leaderboard_actions,
)
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
