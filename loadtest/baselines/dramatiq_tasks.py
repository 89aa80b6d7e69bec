"""Dramatiq's actors: ``dramatiq loadtest.baselines.dramatiq_tasks``.

Default middleware, queue and prefetch; persistent messages in a durable queue, acknowledged after
the actor has returned: all of it Dramatiq's own defaults. Publisher confirms are off by default;
``PEER_CONFIRM=1`` switches them on.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from loadtest.baselines import witness

QUEUE = os.environ.get("PEER_QUEUE", "dramatiq")

broker = RabbitmqBroker(
    url=os.environ["PEER_BROKER_URL"], confirm_delivery=os.environ.get("PEER_CONFIRM") == "1"
)
dramatiq.set_broker(broker)


def run(name: str, payload: dict[str, Any]) -> None:
    """One task. As nothing else remembers that it ended, the log is written to."""
    witness.WORK[name](payload)
    if name != "peer.mark":  # which does so itself
        witness.log("end", int(payload.get("n", 0)))


ACTORS = {
    name: dramatiq.actor(actor_name=name, queue_name=QUEUE)(partial(run, name))
    for name in witness.WORK
}
