"""Settings of every process, read once from the environment (prefix ``FAIRLINE_``)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    SecretStr,
    field_validator,
    model_validator,
)

from app.broker_url import node_urls
from app.policy.local_callers import why_not_listen
from app.policy.scaling import SETTABLE, policy_of
from app.policy.secure_urls import why_not_secure
from models.database_url import standby_url
from models.pools import POOLS
from models.settings import PREFIX, read_settings
from tasks.config import TaskSettings
from tasks.retry.guards import THROTTLE_CRASHES

#: Limits of a dependency that can be declared.
QuotaField = Literal["requests_per_minute", "tokens_in_per_minute", "tokens_out_per_minute"]


class Settings(TaskSettings):
    """All settings: of the state store, the workers, the scheduler and the API."""

    #: Standbys that lists, leaderboards and pages of the console are read from, as a URL like
    #: ``database_url``; empty: the primary.
    read_database_url: str = ""
    #: … while they are not further behind; otherwise they are read from the primary.
    read_lag_seconds: float = Field(default=10.0, ge=1)
    #: The region that this process is in, as cells have one; it prefers cells of its own.
    region: str = Field(default="", pattern="^([a-z][a-z0-9-]{0,30})?$")
    #: What one cell keeps at most for cells of other regions that are away, in bytes; None: 20 GB.
    intake_bytes: int | None = Field(default=None, ge=0)
    #: How log lines are written: for people, or as JSON.
    log_format: Literal["plain", "json"] = "plain"
    #: Whether API processes write a line of JSON for every request to standard output.
    access_log: bool = False
    #: ``amqp://…`` for RabbitMQ, or ``filesystem:///folder`` where there is none. May name several
    #: nodes of a cluster, ``…@a:5672,b:5672//``: one that answers is used.
    broker_url: str = "amqp://guest:guest@127.0.0.1:5672//"
    #: ``quorum`` in production, ``classic`` on one machine.
    queue_type: str = Field(default="quorum", pattern="^(quorum|classic)$")
    #: How long a publish may wait for the broker's confirmation; a later one is no failure.
    publish_seconds: float = Field(default=0.5, gt=0)
    #: Tenant of callers without a key; empty rejects such callers.
    anonymous_tenant: str = ""
    #: Where callers without a key may come from: directly from this machine, or from anywhere.
    anonymous_from: Literal["localhost", "anywhere"] = "localhost"
    #: Whether direct requests from this machine have operator access to the console without a key.
    console_open: bool = False
    #: How long somebody stays signed in to the console or the tenant's page: without doing
    #: anything, and at most.
    session_idle_minutes: float = Field(default=60.0, ge=1)
    session_hours: float = Field(default=12.0, gt=0)
    #: Where browsers reach the console, as ``https://fair.example.com``: where a provider of OpenID
    #: Connect sends them back to.
    public_url: str = ""
    #: Provider of OpenID Connect that operators may sign in with; empty: by key only.
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    #: Empty: a public client.
    oidc_client_secret: SecretStr = SecretStr("")
    #: The claim of the ID token that decides who may sign in; of ``email`` only verified ones.
    oidc_claim: str = Field(default="groups", min_length=1)
    #: Its values that make somebody an operator, or one who may only read; comma-separated.
    oidc_operators: str = ""
    oidc_readers: str = ""
    #: URL of Flower for links in the console; empty: no links.
    flower_url: str = ""
    #: Tasks per second and worker that Flower shows one by one; it counts those beyond. As many
    #: failures are shown besides.
    flower_tasks_per_second: float = Field(default=10.0, ge=0)
    #: Where the load lab's reports are.
    lab_results: str = "loadtest/results"
    #: Where the API listens.
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    #: API processes behind one port.
    api_workers: int = Field(default=2, ge=1)
    #: How long a submission may wait for its commit before the caller gets 503.
    admission_seconds: float = Field(default=1.5, gt=0)
    #: Pools with workers in this deployment, comma-separated; ``/readyz`` requires all of them, and
    #: job types move only between these.
    served_pools: str = "short,medium,long"
    #: Due jobs that are promoted to a pool's queue per second.
    promote_per_second: float = Field(default=2000.0, gt=0)
    #: Workers of a pool that a tenant's jobs may cost within ten minutes before it runs one job at
    #: a time there. Counted are processes killed because a run broke a limit, and every worker from
    #: the third on that one job crashed. Raise it where machines are preempted.
    throttle_crashes: int = Field(default=THROTTLE_CRASHES, ge=1)
    #: How long ended jobs, dead letters, events and idempotency keys are kept.
    keep_finished_days: float = Field(default=7.0, gt=0)
    keep_dead_days: float = Field(default=7.0, gt=0)
    keep_events_days: float = Field(default=7.0, gt=0)
    keep_keys_hours: float = Field(default=24.0, gt=0)
    #: How long scored applications are kept, after their jobs; 0: for ever.
    keep_scored_days: float = Field(default=0.0, ge=0)
    #: How long the audit log is kept.
    keep_audit_days: float = Field(default=365.0, gt=0)
    #: What dependencies accept per minute unless an operator declares a quota, as JSON:
    #: ``{"claude": {"requests_per_minute": 60}}``; also tokens_in and tokens_out.
    quotas: dict[str, dict[QuotaField, PositiveFloat]] = Field(default_factory=dict)
    #: Fewest and most workers, by pool; 1 and 8 by default.
    scale_min: dict[str, NonNegativeInt] = Field(default_factory=dict)
    scale_max: dict[str, NonNegativeInt] = Field(default_factory=dict)
    #: Other changes to the autoscaler's rules, by pool; see ``app/policy/scaling.py``.
    scale_policy: dict[str, dict[str, float]] = Field(default_factory=dict)
    #: What a tenant pays: for a slot-second, a job, and a million tokens of a model.
    price_slot_second: Decimal = Field(default=Decimal("0.00002"), ge=0)
    price_job: Decimal = Field(default=Decimal("0.00001"), ge=0)
    price_million_tokens_in: Decimal = Field(default=Decimal("1"), ge=0)
    price_million_tokens_out: Decimal = Field(default=Decimal("5"), ge=0)
    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")
    #: Submissions per second of every tenant without a rate of its own, instead of its tier's; 0:
    #: no limit. The burst that goes with it; 0: one second's worth.
    submit_per_second: float | None = Field(default=None, ge=0)
    submit_burst: float = Field(default=0.0, ge=0)
    #: Other requests per second of every tenant to one API process, instead of its tier's, unless
    #: it has its own; 0: no limit.
    requests_per_second: float | None = Field(default=None, ge=0)
    #: Idempotency keys that are kept of every tenant without a limit of its own, instead of its
    #: tier's; 0: no limit.
    idempotency_keys: int | None = Field(default=None, ge=0)
    #: Bytes in the blob store of every tenant without a limit of its own, instead of its tier's; 0:
    #: no limit.
    blob_bytes: int | None = Field(default=None, ge=0)
    #: Jobs of a tenant that may wait in a pool.
    queue_depth: int = Field(default=10_000_000, ge=0)
    #: Largest request body.
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    #: Open connections of one API process, and of one address among them; 0: any number of one
    #: address. Addresses in gunicorn's FORWARDED_ALLOW_IPS (loopback by default) are proxies, to
    #: which the second does not apply.
    max_connections: int = Field(default=10_000, ge=1)
    max_connections_per_address: int = Field(default=1_000, ge=0)
    #: A connection on which nothing could be written for so long is closed.
    write_seconds: float = Field(default=30.0, gt=0)
    #: A request head must have arrived in this time, from its first byte on.
    head_seconds: float = Field(default=10.0, gt=0)
    #: A request body must have arrived in this time.
    body_seconds: float = Field(default=15.0, gt=0)

    @field_validator("read_database_url")
    @classmethod
    def _of_standbys(cls, url: str) -> str:
        return standby_url(url) if url else ""

    @field_validator("broker_url")
    @classmethod
    def _with_nodes(cls, url: str) -> str:
        node_urls(url)
        return url

    @field_validator("public_url", "oidc_issuer")
    @classmethod
    def _secure(cls, url: str) -> str:
        if url and (problem := why_not_secure(url)):
            raise ValueError(problem)
        return url

    @field_validator("public_url")
    @classmethod
    def _without_path(cls, url: str) -> str:
        if urlsplit(url).path.rstrip("/"):
            raise ValueError("must have no path: the console is at the root")
        return url.rstrip("/")

    @field_validator(
        "submit_per_second",
        "requests_per_second",
        "idempotency_keys",
        "blob_bytes",
        "intake_bytes",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("scale_min", "scale_max", "scale_policy")
    @classmethod
    def _of_pools(cls, by_pool: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(by_pool) - set(POOLS)):
            raise ValueError(
                f"{', '.join(unknown)} is not a pool; known: {', '.join(sorted(POOLS))}"
            )
        return by_pool

    @field_validator("scale_policy")
    @classmethod
    def _settable(cls, changes: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for pool, change in changes.items():
            if unknown := sorted(set(change) - SETTABLE):
                known = ", ".join(sorted(SETTABLE))
                raise ValueError(f"{pool}.{unknown[0]} is not a rule; known: {known}")
        return changes

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        for pool in POOLS:
            try:
                policy_of(pool, self.scale_min, self.scale_max, self.scale_policy)
            except ValueError as error:
                raise ValueError(f"the scaling of {pool}: {error}") from error
        return self

    @model_validator(mode="after")
    def _oidc_complete(self) -> Self:
        if not self.oidc_issuer:
            return self
        for name in ("public_url", "oidc_client_id"):
            if not getattr(self, name):
                raise ValueError(f"FAIRLINE_OIDC_ISSUER needs {PREFIX}{name.upper()} too")
        if not (names_in(self.oidc_operators) or names_in(self.oidc_readers)):
            raise ValueError(
                "FAIRLINE_OIDC_ISSUER needs FAIRLINE_OIDC_OPERATORS or FAIRLINE_OIDC_READERS too:"
                " nobody else may sign in with it"
            )
        return self

    def check_addresses(self, hosts: Iterable[str]) -> None:
        """Exit if the API would listen where others reach it while callers need no key."""
        problem = why_not_listen(
            hosts,
            tenant=self.anonymous_tenant,
            console_open=self.console_open,
            anywhere=self.anonymous_from == "anywhere",
        )
        if problem:
            raise SystemExit(f"fairline: {problem}")

    @property
    def served_pool_names(self) -> tuple[str, ...]:
        return names_in(self.served_pools)

    @property
    def submission_limits(self) -> dict[str, Any]:
        """The default limits of tenants, as :mod:`app.admission.submission_limits` takes them."""
        return {
            "per_second": self.submit_per_second,
            "burst": self.submit_burst,
            "queue_depth": self.queue_depth,
            "bounds": {
                "requests_per_second": self.requests_per_second,
                "idempotency_keys": self.idempotency_keys,
                "blob_bytes": self.blob_bytes,
            },
        }

    @property
    def amqp(self) -> bool:
        """Whether the broker is a RabbitMQ."""
        return self.broker_url.startswith("amqp")

    @property
    def broker(self) -> tuple[str | list[str], dict[str, Any]]:
        """URLs and transport options as Celery wants them; each process has its own order."""
        if not self.broker_url.startswith("filesystem://"):
            urls = node_urls(self.broker_url)
            return random.sample(urls, len(urls)), {
                # TCP_USER_TIMEOUT: a broker that stopped responding is an error in 10 s.
                "socket_settings": {18: 10_000},
                "connect_timeout": 2,
            }
        folder = Path(self.broker_url.removeprefix("filesystem://"))
        queue, control = folder / "queue", folder / "control"
        for path in (queue, control):
            path.mkdir(parents=True, exist_ok=True)
        return "filesystem://", {
            "data_folder_in": str(queue),
            "data_folder_out": str(queue),
            "control_folder": str(control),
            "polling_interval": 0.02,
        }


def names_in(listed: str) -> tuple[str, ...]:
    """The names of a comma-separated list."""
    return tuple(name.strip() for name in listed.split(",") if name.strip())


@cache
def settings() -> Settings:
    """The settings of this process, which exits here if they are invalid."""
    return read_settings(Settings)
