"""Limits of job queues, as a policy of RabbitMQ: it also applies to queues that exist already.

Arguments of an existing queue cannot be changed, so no limit is one. A private RabbitMQ begins with
the policy; at others the scheduler sets it if it may, or an operator: docs/scaling.md. No limit
loses a job. A message that is dropped after too many deliveries leaves its job to the scheduler,
which looks for lost messages, and a message that a full queue refuses is one that was not
delivered: its job is queued again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

NAME = "fairline"
LIMITS = {
    # RabbitMQ 4's own default; 3 has none.
    "delivery-limit": 20,
    # Far above the window of a pool: about two rounds of work for its live slots.
    "max-length": 100_000,
    # Instead of dropping the oldest message.
    "overflow": "reject-publish",
    # Where a queue is declared says nothing about where its leader should be.
    "queue-leader-locator": "balanced",
}
#: From RabbitMQ 4.3 on, which older ones refuse. While the node of a consumer is unreachable, a
#: quorum queue keeps what it sent there, for a minute by default. Messages that are delivered twice
#: do no harm here, so it need not wait.
LIMITS_OF_4_3 = {**LIMITS, "consumer-disconnected-timeout": 1_000}


def queue_policy(pools: Iterable[str], vhost: str = "/", version: str = "") -> dict[str, Any]:
    """The policy for the queues of these pools and their slices, as in RabbitMQ's definitions.

    ``version`` is that of RabbitMQ. If it is not known, the policy is one that all versions take.
    """
    names = "|".join(re.escape(pool) for pool in sorted(pools))
    return {
        "vhost": vhost,
        "name": NAME,
        "pattern": rf"^({names})(\..+)?$",
        "apply-to": "queues",
        "priority": 0,
        "definition": LIMITS_OF_4_3 if numbers(version) >= (4, 3) else LIMITS,
    }


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; none of one that is not known."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
