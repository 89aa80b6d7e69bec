"""The shapes of requests about schedules."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from app.api.schemas.requests import Name, Strict
from app.tenants.ticks import CatchUp, Overlap

CronText = Annotated[str, StringConstraints(max_length=200)]
ZoneName = Annotated[str, StringConstraints(max_length=100)]
#: Strict schemas take no text for a member of a closed set; these say so.
OverlapName = Annotated[Overlap, Field(strict=False)]
CatchUpName = Annotated[CatchUp, Field(strict=False)]

PRIORITY = Field(0, ge=-100, le=100, description="That of its jobs.")
TYPE = Field(description="A registered job type.", examples=["echo"])


class CreateSchedule(Strict):
    """Body of ``POST /schedules``."""

    name: Name = Field(description="Yours; no two schedules share one.", examples=["nightly"])
    cron: CronText = Field(
        description="Minute, hour, day of month, month, day of week.", examples=["30 2 * * *"]
    )
    timezone: ZoneName = Field("UTC", description="Of the IANA database, as Europe/Berlin.")
    overlap: OverlapName = Field(
        Overlap.ALLOW, description="Whether a tick comes while the job before has not ended."
    )
    catch_up: CatchUpName = Field(
        CatchUp.ONE, description="Which of the ticks that an outage took are made up for."
    )
    type: str = TYPE
    payload: Any = Field(default_factory=dict, description="Of every job; {} if left out.")
    priority: int = PRIORITY
    paused: bool = False


class ChangeSchedule(Strict):
    """Body of ``PATCH /schedules/{id}``: what is left out stays as it is.

    The defaults stand for nothing: what was given is in ``model_fields_set``.
    """

    name: Name = ""
    cron: CronText = ""
    timezone: ZoneName = ""
    overlap: OverlapName = Overlap.ALLOW
    catch_up: CatchUpName = CatchUp.ONE
    type: str = ""
    payload: Any = None
    priority: int = PRIORITY
    paused: bool = False
