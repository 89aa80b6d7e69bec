"""A tenant's own pages and forms, if it lives in several cells.

What they show is merged; what a form does is done in every cell that has something to do. The page
at ``/tenant`` is served by one cell's application, which reads the same of all cells. A cell that
does not answer is left out, as far as others do: the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from app.api.routes.tenant import effective_terms
from app.api.services import Services, current_services
from app.cells.fan_out import CellAnswer, ServedApps, each, query_of
from app.cells.merge import sum_counts
from app.cells.merged_usage import merge_lines
from app.cells.tenant_request import OtherAnswer, TenantRequest
from app.console.page import MOST_NOTICE, NOTICE_COOKIE, PAGES, PageRequest
from app.console.tenant_page.flow import MOST_ENDED, FlowReadings, RateSeries
from app.console.tenant_page.page import LATEST, LATEST_DEAD, TENANT_PAGE, read_parts, shown
from app.console.tenants.one import usage_of
from app.tenants.caps import cap_of
from app.tenants.tenant import TenantProfile
from models.jobs.ids import parse_id
from models.store.errors import StateStoreUnavailable
from models.store.roles import tenant_scope

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from flask import Flask

#: Counts of a pool that are added.
COUNTED = ("scheduled", "queued", "succeeded", "dead", "in_flight", "waiting")
#: How the page of a job begins.
JOB_PAGE = "/tenant/jobs/"
#: What a form says that has done nothing in a cell.
NOTHING_DONE = ("Nothing was replayed", "0 dead letters")

Parts = dict[str, Any]


def merge_tenant_page(app: Flask, apps: ServedApps) -> None:
    """Have the page of an application show all cells of a tenant."""

    def read(asked: PageRequest) -> Parts:
        placement = apps.placement_of(asked.own.name)
        if placement is None or len(placement.weights) == 1:
            return TENANT_PAGE.read(asked)
        cells = (*placement.admitting, *placement.leaving)
        found = each(apps, cells, lambda _, of: parts_in(of, asked))
        if not found:
            raise StateStoreUnavailable
        merged = merge_parts([found[cell] for cell in cells if cell in found])
        return shown(merged) | {"missing_cells": [cell for cell in cells if cell not in found]}

    pages = app.extensions[PAGES]
    pages[TENANT_PAGE.endpoint] = replace(TENANT_PAGE, read=read)


def parts_in(app: Flask, asked: PageRequest) -> Parts:
    """What the page shows of one cell."""
    with app.app_context(), tenant_scope(asked.own.id):
        return read_parts(asked)


def merge_parts(cells: Sequence[Parts]) -> Parts:
    """What the page shows of several cells; the first says what they have in common."""
    first = cells[0]
    tenant = replace(first["tenant"], share=1.0)
    services = current_services()
    lines = merge_lines([line for one in cells for line in one["lines"]], services.prices)
    return first | {
        "tenant": tenant,
        "effective": effective_terms(services.gate, tenant),
        "pools": merge_pools([pool for one in cells for pool in one["pools"]], tenant, services),
        "usage": usage_of(lines, services.prices),
        "refusals": dict(
            sorted(sum_counts(one["refusals"] for one in cells).items(), reverse=True)
        ),
        "restrictions": [each_one for one in cells for each_one in one["restrictions"]],
        "flow": merge_flow([one["flow"] for one in cells]),
        "waiting": min(
            (one["waiting"] for one in cells if one["waiting"]),
            key=lambda waiting: str(waiting["id"]),
            default=None,
        ),
        "dead": merge_dead([one["dead"] for one in cells]),
        "jobs": newest((job for one in cells for job in one["jobs"]), LATEST),
    }


def newest(jobs: Iterable[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The newest jobs, each once; of two, the first."""
    known: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        known.setdefault(str(job["id"]), job)
    return [known[job_id] for job_id in sorted(known, reverse=True)[:most]]


def merge_pools(
    rows: Iterable[Mapping[str, Any]], tenant: TenantProfile, services: Services
) -> list[Parts]:
    """Counts of all cells, and the undivided limits; the share of several pools is none."""
    pools: dict[str, Parts] = {}
    for row in rows:
        known = pools.setdefault(row["pool"], {**row, **dict.fromkeys(COUNTED, 0), "owed": None})
        for name in COUNTED:
            known[name] += row[name]
        if row["owed"] is not None:
            known["owed"] = (known["owed"] or 0.0) + row["owed"]
    terms = services.gate.terms(tenant, pools)
    return [
        known | {"share": None, "depth": terms["depth"].get(pool), "cap": cap_of(tenant, pool)}
        for pool, known in sorted(pools.items())
    ]


def merge_flow(flows: Sequence[FlowReadings]) -> FlowReadings:
    """Jobs submitted and ended in all cells; as far back as every cell was read."""
    minutes: dict[Any, int] = {}
    for flow in flows:
        for minute, jobs in flow.came.minutes.items():
            minutes[minute] = minutes.get(minute, 0) + jobs
    since = max((flow.came.since for flow in flows if flow.came.since is not None), default=None)
    came = RateSeries(minutes, sum(flow.came.recent for flow in flows), since)
    ended = sorted(
        (one for flow in flows for one in flow.ended), key=lambda one: one.finished_at, reverse=True
    )
    return FlowReadings(came, ended[:MOST_ENDED], max(flow.now for flow in flows))


def merge_dead(cells: Sequence[Parts]) -> Parts:
    """Dead letters of all cells: groups, how many, the newest, and replays in progress."""
    groups: dict[tuple[str, str], Parts] = {}
    for row in (row for one in cells for row in one["groups"]):
        known = groups.setdefault(
            (row.type, row.error_class or ""),
            {"type": row.type, "error_class": row.error_class, "jobs": 0, "newest": row.newest},
        )
        known["jobs"] += row.jobs
        known["newest"] = max(known["newest"], row.newest)
    replays: dict[str, Parts] = {}
    for row in (row for one in cells for row in one["replays"]):
        known = replays.setdefault(row.id, {**row._mapping, "total": 0, "done": 0})
        known["total"] += row.total
        known["done"] += row.done
    ordered = sorted(groups.items(), key=lambda item: (-item[1]["jobs"], item[0]))
    return {
        "groups": [group for _, group in ordered],
        "count": sum(one["count"] for one in cells),
        "more": any(one.get("more") for one in cells),
        "latest": newest((job for one in cells for job in one.get("latest", ())), LATEST_DEAD),
        "replays": list(replays.values()),
    }


# What browsers send.


def page_events(asked: TenantRequest) -> WSGIApplication:
    """The stream of a page: of a job's by the cell that has it, of others by the first."""
    path = urlsplit(query_of(asked.environ).get("page", "")).path
    if not path.startswith(JOB_PAGE):
        return asked.first()
    return asked.one(parse_id(path.removeprefix(JOB_PAGE).partition("/")[0]))


def form_in_all(asked: TenantRequest) -> WSGIApplication:
    """Send a form to one cell after the other; what it says of those that had something to do."""
    answers = []
    for cell in (*asked.placement.leaving, *asked.placement.admitting):
        one = asked.required(cell)
        if one is None or one.status == HTTPStatus.NOT_FOUND:
            continue
        if one.status >= HTTPStatus.BAD_REQUEST:
            raise OtherAnswer(one)
        answers.append(one)
    return said_of(answers) if answers else asked.first()


def said_of(answers: Sequence[CellAnswer]) -> CellAnswer:
    """One answer with the notices of all cells that did something."""
    notices = {one.cell: notice_of(one) for one in answers}
    told = {cell: notice for cell, notice in notices.items() if not notice.startswith(NOTHING_DONE)}
    chosen = next((one for one in answers if one.cell in told), answers[0])
    if len(told) <= 1:
        return chosen
    text = quote(" ".join(f"{cell}: {notice}" for cell, notice in told.items())[:MOST_NOTICE])
    headers = [
        (name, value.replace(raw_notice(value), text, 1) if is_notice(name, value) else value)
        for name, value in chosen.headers
    ]
    return replace(chosen, headers=headers)


def notice_of(answer: CellAnswer) -> str:
    """What the next page says."""
    cookies = (value for name, value in answer.headers if is_notice(name, value))
    return unquote(next(map(raw_notice, cookies), ""))


def is_notice(name: str, value: str) -> bool:
    return name.lower() == "set-cookie" and value.startswith(f"{NOTICE_COOKIE}=")


def raw_notice(cookie: str) -> str:
    return cookie.partition("=")[2].partition(";")[0]
