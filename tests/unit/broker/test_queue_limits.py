"""The policy of job queues: the command of the docs sets the same as ``make up``."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from app.broker.management import ManagementApi
from app.broker.queue_limits import NAME, queue_policy
from app.stack.rabbitmq import definitions
from models.pools import is_job_queue, reserved, slice_queue
from tests import ROOT

#: Whatever pools these tests run with.
POOLS = ("short", "medium", "long")


def test_command_of_the_docs_sets_the_policy() -> None:
    [line] = re.findall(r"^rabbitmqctl set_policy .*", (ROOT / "docs/scaling.md").read_text(), re.M)
    _, _, name, pattern, definition, *rest = shlex.split(line)
    policy = queue_policy(POOLS)
    assert (name, pattern) == (NAME, policy["pattern"])
    assert json.loads(definition) == policy["definition"]
    assert rest == ["--apply-to", policy["apply-to"]]


@pytest.mark.parametrize(
    ("version", "known"),
    [("", False), ("3.10.8", False), ("4.2.9", False), ("4.3.0-rc.1", True), ("4.10.1", True)],
)
def test_messages_to_a_lost_node_come_back_soon_where_rabbitmq_knows_the_limit(
    version: str, known: bool
) -> None:
    definition = queue_policy(POOLS, version=version)["definition"]
    assert definition.get("consumer-disconnected-timeout") == (1_000 if known else None)
    assert definition.items() >= queue_policy(POOLS)["definition"].items()


def test_embedded_node_has_the_policy() -> None:
    [policy] = json.loads(definitions("known", "secret"))["policies"]
    assert policy["definition"]["overflow"] == "reject-publish", "no message is dropped silently"


@pytest.mark.parametrize(
    "name",
    [
        *POOLS,
        *(slice_queue(pool, "free") for pool in POOLS),
        slice_queue("medium", reserved("a-b_c")),
        *("mediums", "xmedium", "celeryev.1", "medium@host.celery.pidbox", "medium."),
    ],
)
def test_pattern_matches_queues_of_jobs_and_no_others(name: str) -> None:
    assert bool(re.search(queue_policy(POOLS)["pattern"], name)) == is_job_queue(name)


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ("amqp://me:secret@mq1:5672//", ("mq1", 15672, "/")),
        ("amqp://me:secret@mq1/team%2Fa", ("mq1", 15672, "team/a")),
        ("amqps://me:secret@[::1]//", ("::1", 15671, "/")),
        ("amqp://mq1", ("mq1", 15672, "/")),
        ("amqp://me:secret@mq1:5673//", None),
        ("filesystem:///tmp/queues", None),
    ],
)
def test_management_api_is_looked_for_at_its_usual_port(
    broker: str, expected: tuple[str, int, str] | None
) -> None:
    found = ManagementApi.of(broker)
    assert (found and (found.host, found.port, found.vhost)) == expected
