"""Dramatiq's actors: ``dramatiq loadtest.baselines.dramatiq_tasks``.

Its default middleware, queue and prefetch. Messages are persistent in a durable queue and are
acknowledged after the actor has returned, all of which are Dramatiq's own defaults. Whether the
broker must confirm a message before ``send`` returns is off by default; ``PEER_CONFIRM=1`` switches
it on.
"""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from loadtest.baselines import witness

QUEUE = os.environ.get("PEER_QUEUE", "dramatiq")

broker = RabbitmqBroker(
    url=os.environ["PEER_BROKER_URL"], confirm_delivery=os.environ.get("PEER_CONFIRM") == "1"
)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="peer.noop", queue_name=QUEUE)
def noop(payload: dict[str, Any]) -> None:
    """Nothing to do. As nothing else remembers that it ended, the witness is told."""
    witness.tell("end", int(payload.get("n", 0)))


@dramatiq.actor(actor_name="peer.nap", queue_name=QUEUE)
def nap(payload: dict[str, Any]) -> None:
    """Takes so many milliseconds."""
    time.sleep(payload["ms"] / 1000)
    witness.tell("end", int(payload["n"]))


@dramatiq.actor(actor_name="peer.mark", queue_name=QUEUE)
def mark(payload: dict[str, Any]) -> None:
    """Tells when it began and ended."""
    witness.run(payload)


ACTORS = {actor.actor_name: actor for actor in (noop, nap, mark)}
