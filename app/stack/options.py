"""What the caller of ``make up`` may choose, all through the environment or ``.env``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from dotenv import dotenv_values

from app.stack.spec import PROJECT_ROOT
from models.pools import POOLS

Broker = Literal["auto", "rabbitmq", "filesystem"]


class BadOption(ValueError):
    """A variable of the environment makes no sense."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The choices, checked."""

    home: Path
    host: str
    port: int
    flower_port: int
    #: Workers by pool.
    workers: Mapping[str, int]
    api_workers: int
    schedulers: int
    broker: Broker
    #: Services that somebody else runs; empty means embedded.
    database_url: str
    broker_url: str
    #: Where large payloads are; empty means below the home.
    blob_url: str
    log_level: str
    drain_seconds: float
    ready_seconds: float


def read_options(environment: Mapping[str, str] | None = None) -> StackOptions:
    """Read them; the real environment wins over ``.env``."""
    if environment is None:
        file = {k: v for k, v in dotenv_values(PROJECT_ROOT / ".env").items() if v is not None}
        environment = {**file, **os.environ}
    get = environment.get

    def number(name: str, default: int, lowest: int, highest: int = 65_535) -> int:
        text = get(name) or str(default)
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise BadOption(f"{name}={text}: a number from {lowest} to {highest} is needed")
        return int(text)

    broker = get("BROKER") or "auto"
    if broker not in get_args(Broker):
        raise BadOption(f"BROKER={broker}: one of {', '.join(get_args(Broker))} is needed")
    port, flower_port = number("PORT", 8000, 1), number("FLOWER_PORT", 5555, 1)
    if port == flower_port:
        raise BadOption(f"PORT and FLOWER_PORT are both {port}; choose two")
    return StackOptions(
        home=PROJECT_ROOT / (get("FAIRLINE_HOME") or ".run"),
        host=get("FAIRLINE_HOST") or "127.0.0.1",
        port=port,
        flower_port=flower_port,
        workers={pool: number(f"WORKERS_{pool.upper()}", 1, 0, 1000) for pool in POOLS},
        api_workers=number("API_WORKERS", 2, 1, 1000),
        schedulers=number("SCHEDULERS", 1, 0, 100),
        broker=broker,  # type: ignore[arg-type]  # checked above
        database_url=get("FAIRLINE_DATABASE_URL") or "",
        broker_url=get("FAIRLINE_BROKER_URL") or "",
        blob_url=get("FAIRLINE_BLOB_URL") or "",
        log_level=get("FAIRLINE_LOG_LEVEL") or "warning",
        drain_seconds=number("FAIRLINE_DRAIN_SECONDS", 20, 1, 3600),
        ready_seconds=number("FAIRLINE_READY_SECONDS", 60, 1, 3600),
    )
