"""Options of ``make up``, all through the environment or ``.env``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from dotenv import dotenv_values

from app.stack.spec import PROJECT_ROOT, StackError
from models.pools import POOLS, parse_queue

#: Slots that one worker of a slice may have.
MOST_SLOTS = 1000

#: Settings for which the stack has a shorter name, which wins where both are set.
SHORT_NAMES = {
    "FAIRLINE_PORT": "PORT",
    "FAIRLINE_API_WORKERS": "API_WORKERS",
    "FAIRLINE_QUEUE_TYPE": "QUEUE_TYPE",
}

Broker = Literal["auto", "rabbitmq", "filesystem"]


@dataclass(frozen=True, slots=True)
class StackOptions:
    home: Path
    host: str
    port: int
    flower_port: int
    #: Workers by pool.
    workers: Mapping[str, int]
    #: Slots of the workers that serve a slice, by queue.
    slices: Mapping[str, int]
    #: Whether the autoscaler sets the number of workers.
    autoscale: bool
    #: … and the fewest workers it may keep, by pool.
    least: dict[str, int]
    api_workers: int
    schedulers: int
    broker: Broker
    #: Empty: what suits the broker.
    queue_type: str
    #: External services; empty means embedded.
    database_url: str
    broker_url: str
    #: Where large payloads are; empty means below the home.
    blob_url: str
    log_level: str
    drain_seconds: float
    ready_seconds: float
    #: Settings of the application in ``.env``.
    file: Mapping[str, str]


def read_options(environment: Mapping[str, str] | None = None) -> StackOptions:
    """Read them; the real environment wins over ``.env``."""
    file: dict[str, str] = {}
    if environment is None:
        file = {k: v for k, v in dotenv_values(PROJECT_ROOT / ".env").items() if v is not None}
        environment = os.environ
    get = {**with_short_names(file), **with_short_names(environment)}.get

    def number(name: str, default: int, lowest: int, highest: int = 65_535) -> int:
        text = get(name) or str(default)
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise StackError(f"{name}={text}: must be a number from {lowest} to {highest}")
        return int(text)

    broker = get("BROKER") or "auto"
    if broker not in get_args(Broker):
        raise StackError(f"BROKER={broker}: must be one of {', '.join(get_args(Broker))}")
    workers = {pool: number(f"WORKERS_{pool.upper()}", 1, 0, 1000) for pool in POOLS}
    port, flower_port = number("PORT", 8000, 1), number("FLOWER_PORT", 5555, 1)
    if port == flower_port:
        raise StackError(f"PORT and FLOWER_PORT are both {port}; they must differ")
    return StackOptions(
        home=PROJECT_ROOT / (get("FAIRLINE_HOME") or ".run"),
        host=get("FAIRLINE_HOST") or "127.0.0.1",
        port=port,
        flower_port=flower_port,
        workers=workers,
        slices=read_slices(get("SLICES") or ""),
        autoscale=number("AUTOSCALE", 0, 0, 1) == 1,
        least={**workers, **read_least(get("FAIRLINE_SCALE_MIN") or "{}")},
        api_workers=number("API_WORKERS", 2, 1, 1000),
        schedulers=number("SCHEDULERS", 1, 0, 100),
        broker=broker,  # type: ignore[arg-type]  # checked above
        queue_type=get("QUEUE_TYPE") or "",
        database_url=get("FAIRLINE_DATABASE_URL") or "",
        broker_url=get("FAIRLINE_BROKER_URL") or "",
        blob_url=get("FAIRLINE_BLOB_URL") or "",
        log_level=get("FAIRLINE_LOG_LEVEL") or "warning",
        drain_seconds=number("FAIRLINE_DRAIN_SECONDS", 20, 1, 3600),
        ready_seconds=number("FAIRLINE_READY_SECONDS", 60, 1, 3600),
        file={name: value for name, value in file.items() if name.startswith("FAIRLINE_")},
    )


def with_short_names(given: Mapping[str, str]) -> dict[str, str]:
    """The variables, with a short name for each long one."""
    short = {short: given.get(short) or given.get(long) for long, short in SHORT_NAMES.items()}
    return {**given, **{name: value for name, value in short.items() if value is not None}}


def read_least(text: str) -> dict[str, int]:
    """The fewest workers by pool, from JSON."""
    try:
        least = dict(json.loads(text))
        if all(type(count) is int and count >= 0 for count in least.values()):
            return least
    except (TypeError, ValueError):
        pass
    raise StackError(f'FAIRLINE_SCALE_MIN={text}: must be JSON such as {{"medium": 2}}')


def read_slices(text: str) -> dict[str, int]:
    """Slices with their slots, as in ``medium.reserved.acme=2 medium.free=1``."""
    slices = {}
    for word in text.split():
        name, _, slots = word.partition("=")
        pool, slice_ = parse_queue(name)
        if slice_ and pool not in POOLS:
            raise StackError(
                f"SLICES={text}: {pool} is not a pool; known: {', '.join(sorted(POOLS))}"
            )
        if not slice_ or not slots.isdecimal() or not 1 <= int(slots) <= MOST_SLOTS:
            raise StackError(
                f"SLICES={text}: {word!r} must be like medium.free=1 or medium.reserved.acme=2"
            )
        slices[name] = int(slots)
    return slices
