"""Settings of the state store and the pools, read once from the environment.

Invalid settings end the process with one line each, not with a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from models.database_url import normal_url
from models.secret_files import secrets_folder

S = TypeVar("S", bound=BaseSettings)

PREFIX = "FAIRLINE_"
#: In place of pydantic's messages, by the beginning of its code.
MESSAGES = {
    "int": "must be a whole number",
    "float": "must be a number",
    "decimal": "must be a number",
    "dict": "must be an object, as JSON",
    "bool": "must be true or false",
    "missing": "is missing",
    "extra_forbidden": "is no setting",
}


class Pool(BaseModel):
    """A class of work by duration, with the limits that follow from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Queue, worker option ``-Q`` and metric label.
    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")
    #: A claim holds this long without a heartbeat; so does a dispatch without a claim.
    lease_seconds: float = Field(ge=3)
    #: Jobs one worker runs at a time, as the stack starts it.
    slots: int = Field(ge=1)
    #: Tries an APP_ERROR gets before the job is dead.
    tries: int = Field(ge=1)
    #: Kind of worker the stack starts: prefork for what computes or must be killed.
    concurrency: Literal["gevent", "prefork"] = "gevent"
    #: References one message may carry at most: as many as take a moment, see app/policy/window.py.
    #: A prefork process runs one job at a time, and gets one reference.
    refs_per_message: int = Field(default=100, ge=1)
    #: 99 of 100 jobs start within so many seconds of being due: the objective that the console,
    #: ``/metrics``, the alerts and the load lab judge by.
    objective_seconds: float = Field(default=60, gt=0)
    #: A run that takes longer is in the wrong pool: counted, not stopped. None: no bound.
    bound_seconds: float | None = Field(default=None, gt=0)
    #: Longest time limit a job type of this pool may have.
    most_seconds: float = Field(default=86_400, gt=0)
    #: The pool of shorter runs that it takes over from: job types move between them as measured.
    above: str | None = None
    #: A run that does not checkpoint for so long is stopped, whatever progress it reports.
    checkpoint_seconds: float | None = Field(default=None, gt=0)
    #: A run that neither checkpoints nor reports progress for so long is treated as hung.
    progress_seconds: float | None = Field(default=None, gt=0)
    #: Memory a run may add to its process, where each run has a process (prefork).
    memory_mb: int | None = Field(default=None, ge=16)
    #: Processor time a run may use, under prefork. None: its time limit is enough.
    cpu_seconds: float | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _alone_in_a_process(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("concurrency") == "prefork":
            return {"refs_per_message": 1, **given}
        return given

    @model_validator(mode="after")
    def _one_job_a_process(self) -> Self:
        if self.concurrency == "prefork" and self.refs_per_message > 1:
            raise ValueError("a prefork process runs one job at a time: refs_per_message is 1")
        return self


class DatabaseSettings(BaseSettings):
    """What every process needs: how to reach PostgreSQL, and which pools there are."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", secrets_dir=secrets_folder(), extra="ignore"
    )

    #: SQLAlchemy URL; plain ``postgresql://`` would mean psycopg 3 in SQLAlchemy 2.1. May name
    #: several servers, ``…@a:5432,b:5433/db``: the one that takes writes is used.
    database_url: str = "postgresql+psycopg2://fairline@127.0.0.1:5432/fairline"
    #: The same of the owner of the tables, for migrations; empty: ``database_url``.
    owner_database_url: str = ""
    #: The database that names all cells and says which tenants live where; empty: no cells.
    registry_url: str = ""
    #: Connections a process keeps; group commit makes two enough at any concurrency.
    db_pool_size: int = Field(default=2, ge=1, le=100)
    #: How long to wait for a connection to be established or taken from the pool.
    db_connect_seconds: float = Field(default=1.5, gt=0)
    #: How long one statement may take before the server counts as away.
    db_statement_seconds: float = Field(default=5.0, gt=0)
    #: Where large payloads and checkpoints are: a folder, ``file:///…`` or ``s3://bucket/…``.
    blob_url: str = ".run/blobs"
    #: Keys that payloads, results and other content are encrypted with, as ``id:base64`` with 32
    #: bytes each, comma-separated: the first encrypts, all decrypt; empty: nothing is encrypted.
    encryption_keys: SecretStr = SecretStr("")
    #: Changes to the built-in pools and more pools, as JSON; see ``models/pools.py``.
    pools: dict[str, dict[str, Any]] = {}

    @field_validator("database_url", "owner_database_url", "registry_url")
    @classmethod
    def _with_servers(cls, url: str, field: ValidationInfo) -> str:
        return normal_url(url) if url or field.field_name == "database_url" else ""

    @property
    def migrations_url(self) -> str:
        """Where migrations connect."""
        return self.owner_database_url or self.database_url


def read_settings(kind: type[S], **changes: Any) -> S:
    """The settings of this process: the environment's, with ``changes``."""
    with exit_if_invalid():
        return kind(**changes)


@contextmanager
def exit_if_invalid(*within: str) -> Iterator[None]:
    """Exit with one line per invalid value; ``within``: the setting that it is a part of."""
    try:
        yield
    except ValidationError as invalid:
        lines = [describe((*within, *error["loc"]), error) for error in invalid.errors()]
        raise SystemExit("\n".join(lines)) from None
    except SettingsError as unread:
        found = re.search(r'field "(\w+)"', str(unread))
        name = f"{PREFIX}{found[1].upper()}" if found else "a setting"
        raise SystemExit(f"fairline: {name}: is not valid JSON: {unread.__cause__}") from None
    except ValueError as wrong:  # about several values together
        raise SystemExit(f"fairline: {PREFIX}{'.'.join(within).upper()}: {wrong}") from None


def describe(path: tuple[int | str, ...], error: ErrorDetails) -> str:
    """An invalid value: the setting, the place inside it, and what is wrong."""
    problem = str(error["ctx"]["error"]) if error["type"] == "value_error" else message_of(error)
    if not path:  # about several settings, which the message names
        return f"fairline: {problem}"
    name, *inside = (str(part) for part in path if part != "[key]")
    return f"fairline: {PREFIX}{name.upper()}: {'.'.join(inside)} {problem}".replace(":  ", ": ")


def message_of(error: ErrorDetails) -> str:
    """What is wrong, in plain words."""
    code, value = error["type"], error["input"]
    # As the code begins: int_parsing, int_type and int_from_float are all one.
    begun = code if code in MESSAGES else code.split("_")[0]
    message = MESSAGES.get(begun) or error["msg"].replace("Input should", "must").lower()
    return f"{message}, not {value!r:.60}" if isinstance(value, str | int | float) else message
