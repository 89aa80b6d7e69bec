"""What the chart's ScaledObjects ask the API for, asked: KEDA needs a number there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any
from urllib.parse import urlsplit

import pytest

from models.pools import POOLS
from tests.integration.api.test_operator_api import Operator
from tests.support.chart import EXAMPLES, of_kind, render
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient, opened


@pytest.fixture
def operator(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    with opened(api_database, tmp_path_factory.mktemp("blobs")) as app:
        yield Operator(HttpClient(app), api_database)


def test_every_trigger_finds_its_number(operator: Operator, api_database: DatabaseFixture) -> None:
    api_database.execute(
        "INSERT INTO desired_workers (pool, workers, reason, living, depth, oldest_seconds,"
        " utilisation) SELECT pool, 12, '', 1, 0, 0, 0 FROM unnest(%s::text[]) AS pool"
        " ON CONFLICT (pool) DO UPDATE SET workers = 12",
        list(POOLS),
    )
    for tenant, pool, slots in (("acme", "medium", 25), ("big_bank", "long", 4)):
        terms = {"tier": "enterprise", "limits": {pool: {"reserved": slots}}}
        operator.do("POST", "/tenants", {"name": tenant, **terms}, 201)
    replicas = {}
    for scaled in of_kind(render(EXAMPLES["slices"]), "ScaledObject"):
        (trigger,) = scaled["spec"]["triggers"]
        asked = trigger["metadata"]
        if ".gpu." in asked["valueLocation"]:
            continue  # a pool that this process does not know
        path = urlsplit(asked["url"]).path.removeprefix("/operator")
        document = operator.do("GET", path)
        value: Any = reduce(
            lambda part, key: part[key], asked["valueLocation"].split("."), document
        )
        name = scaled["metadata"]["name"].removeprefix("fairline-worker-")
        replicas[name] = -(-value // int(asked["targetValue"]))
    assert replicas == {
        "short": 12,
        "medium": 12,
        "long": 12,
        "medium-reserved-acme": 3,
        "long-reserved-big-bank": 2,
        "medium-free": 2,
    }
