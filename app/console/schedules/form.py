"""The form of a schedule: its fields, what was typed, and the request that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic_core import from_json

from app.api.schemas.requests import CreateSchedule
from app.console.formatting import pretty
from app.console.forms import Form, body_with_payload, number_of, reasons
from app.errors import FairlineError
from app.tenants.schedules import RecurringSchedule

TEXTS = ("name", "cron", "timezone", "type", "overlap", "catch_up")
FIELDS = (*TEXTS, "payload", "priority")
NEW = {"timezone": "UTC", "overlap": "allow", "catch_up": "one", "payload": "{}", "priority": "0"}


@dataclass(frozen=True, slots=True)
class ScheduleForm(Form):
    """The form of a schedule; ``paused`` is not empty if it is to be paused."""

    typed: Mapping[str, str] = field(default_factory=lambda: NEW)


def form_of(schedule: RecurringSchedule) -> ScheduleForm:
    """The form of a schedule that exists."""
    texts = {name: str(value) for name, value in asdict(schedule).items() if name in FIELDS}
    texts["payload"] = pretty(from_json(schedule.payload))
    return ScheduleForm(texts | {"paused": "yes" if schedule.paused else ""})


def refused_form(typed: Mapping[str, str], error: FairlineError) -> ScheduleForm:
    """The form again, with what was typed and why it is refused."""
    return ScheduleForm(typed, *reasons(error))


def parse_form(typed: Mapping[str, str]) -> CreateSchedule:
    """What was typed as the API takes it, or all of its errors."""
    document: dict[str, Any] = {name: typed.get(name, "").strip() for name in TEXTS}
    document["paused"] = bool(typed.get("paused"))
    document["priority"] = number_of(typed.get("priority", ""))
    return body_with_payload(document, typed.get("payload", ""), CreateSchedule)
