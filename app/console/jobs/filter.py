"""The filter of the list of jobs: what was entered, what it means, and its link.

Pure except for the tenant, whose name is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

from sqlalchemy import Connection

from app.reads.search import NO_CLASS, Wanted, parse_payload_field, why_unsearchable
from models.jobs.states import LIVE, FailureClass, JobStatus

LIST = "/console/jobs"
STATUSES = tuple(status.value for status in JobStatus)
#: Names for several states.
GROUPS = {
    "waiting": ("scheduled", "queued"),
    "in-flight": ("dispatched", "running"),
    "live": tuple(status for status in STATUSES if status in LIVE),
}
CLASSES = (*(failure.value for failure in FailureClass), NO_CLASS)
#: Fields and their labels.
FIELDS = {
    "status": "State",
    "type": "Type",
    "tenant": "Tenant",
    "pool": "Pool",
    "error_class": "Error class",
    "text": "Error contains",
    "payload": "Payload field",
    "since": "Submitted since",
    "until": "Submitted before",
}
#: Longer values match nothing.
MOST_CHARACTERS = 200

FIND_TENANT = "SELECT id FROM tenants WHERE name = %(name)s"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to show."""

    #: Fields that are not empty, as the form shows them.
    given: Mapping[str, str] = field(default_factory=dict)
    #: What is wrong, by field.
    errors: Mapping[str, str] = field(default_factory=dict)
    statuses: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    def url(self, path: str = LIST, **more: str | None) -> str:
        """A link to what matches; ``more`` replaces fields, None omits one."""
        fields = {name: value for name, value in {**self.given, **more}.items() if value}
        return f"{path}?{urlencode(fields)}" if fields else path

    def labelled(self) -> list[tuple[str, str]]:
        """The fields that are set, with their labels."""
        return [(label, self.given[name]) for name, label in FIELDS.items() if name in self.given]


def parse_filter(args: Mapping[str, str]) -> JobFilter:
    """The filter of a query or a form; other fields are ignored."""
    given = {name: value for name in FIELDS if (value := args.get(name, "").strip())}
    errors: dict[str, str] = {}
    for name, value in given.items():
        if len(value) > MOST_CHARACTERS or "\0" in value:
            errors[name] = "is too long or contains invalid characters"
    status = given.get("status", "")
    statuses = GROUPS.get(status, (status,) if status in STATUSES else ())
    if status and not statuses:
        errors["status"] = f"must be one of {', '.join((*STATUSES, *GROUPS))}"
    if given.get("error_class", NO_CLASS) not in CLASSES:
        errors["error_class"] = f"must be one of {', '.join(CLASSES)}"
    if "payload" in given and parse_payload_field(given["payload"]) is None:
        errors.setdefault("payload", "must be a field and its value, such as candidate=alice")
    if why_not := why_unsearchable():
        errors |= {name: why_not for name in ("payload", "text") if name in given}
    moments: dict[str, datetime | None] = {}
    for name in ("since", "until"):
        moments[name] = parse_moment(given[name]) if name in given else None
        if name in given and moments[name] is None:
            errors.setdefault(name, "must be a time such as 2026-01-31T14:30")
        elif moment := moments[name]:
            given[name] = moment.strftime("%Y-%m-%dT%H:%M" + (":%S" if moment.second else ""))
    return JobFilter(given, errors, statuses, moments["since"], moments["until"])


def parse_moment(text: str) -> datetime | None:
    """An ISO 8601 time; UTC unless it has an offset."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def resolve(connection: Connection, asked: JobFilter) -> Wanted | None:
    """What to search for; None if a field is invalid or there is no such tenant."""
    if asked.errors:
        return None
    tenant_id = None
    if "tenant" in asked.given:
        found = connection.exec_driver_sql(FIND_TENANT, {"name": asked.given["tenant"]}).first()
        if found is None:
            return None
        tenant_id = found.id
    return Wanted(
        statuses=asked.statuses,
        type=asked.given.get("type"),
        pool=asked.given.get("pool"),
        error_class=asked.given.get("error_class"),
        text=asked.given.get("text"),
        payload=parse_payload_field(asked.given.get("payload", "")),
        tenant_id=tenant_id,
        since=asked.since,
        until=asked.until,
    )
