"""The form of a schedule: its fields, what was typed, and the request that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from pydantic_core import from_json

from app.api.http.body import JsonDocument, validate_body
from app.api.schemas.requests import CreateSchedule
from app.console.formatting import pretty
from app.console.forms import was_of
from app.errors import FairlineError, FieldError, ValidationFailed
from app.tenants.schedules import RecurringSchedule

TEXTS = ("name", "cron", "timezone", "type", "overlap", "catch_up")
FIELDS = (*TEXTS, "payload", "priority")
NEW = {"timezone": "UTC", "overlap": "allow", "catch_up": "one", "payload": "{}", "priority": "0"}


@dataclass(frozen=True, slots=True)
class ScheduleForm:
    """What the form shows."""

    #: By field, as text; ``paused`` is not empty if it is to be paused.
    typed: Mapping[str, str] = field(default_factory=lambda: NEW)
    #: Why it was refused, in general and by field.
    detail: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def was(self) -> str:
        """For its hidden field."""
        return was_of(self.typed)


def form_of(schedule: RecurringSchedule) -> ScheduleForm:
    """The form of a schedule that exists."""
    texts = {name: str(value) for name, value in asdict(schedule).items() if name in FIELDS}
    texts["payload"] = pretty(from_json(schedule.payload))
    return ScheduleForm(texts | {"paused": "yes" if schedule.paused else ""})


def refused_form(typed: Mapping[str, str], error: FairlineError) -> ScheduleForm:
    """The form again, with the first error of each field."""
    errors: dict[str, str] = {}
    for problem in error.errors:
        errors.setdefault(problem.field.partition(".")[0], f"{problem.field} {problem.message}")
    return ScheduleForm(typed, "" if errors else error.detail, errors)


def parse_form(typed: Mapping[str, str]) -> CreateSchedule:
    """What was typed as the API takes it, or all of its errors."""
    document: dict[str, Any] = {name: typed.get(name, "").strip() for name in TEXTS}
    document["paused"] = bool(typed.get("paused"))
    document["priority"] = number_of(typed.get("priority", ""))
    payload = typed.get("payload", "").strip().encode() or b"{}"
    wrong: tuple[FieldError, ...] = ()
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        wrong, payload = (FieldError("payload", f"is not JSON: {error}"),), b"{}"
    raw = b'%b,"payload":%b}' % (orjson.dumps(document)[:-1], payload)
    try:
        body = validate_body(JsonDocument(raw, orjson.loads(raw)), CreateSchedule)
    except ValidationFailed as error:
        raise ValidationFailed(errors=(*error.errors, *wrong)) from None
    if wrong:
        raise ValidationFailed(errors=wrong)
    return body


def number_of(typed: str) -> int | str:
    """A whole number; what is none stays a text, which the schema refuses."""
    text = typed.strip() or "0"
    digits = text.removeprefix("-")
    small = digits.isascii() and digits.isdecimal() and len(digits) < 10
    return int(text) if small else text
