"""Sets the policy with the limits of job queues at RabbitMQ, once a minute, if its user may.

Without the right, or where RabbitMQ has no management API at its usual port, an operator sets them:
docs/scaling.md. Nothing else depends on them.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from http.client import HTTPException

from app.broker.management import ManagementApi
from app.broker.queue_limits import queue_policy
from app.broker_url import node_urls
from models.pools import POOLS

logger = logging.getLogger(__name__)

KEEP_SECONDS = 60.0
#: After a refusal: the user may get the right, and a node that starts may not know him yet.
REFUSED_SECONDS = 3600.0
OTHERWISE = "an operator may set them: docs/scaling.md"


class LimitKeeper:
    """Asks one node, the next one if that is away, and none for an hour after a refusal."""

    def __init__(self, broker_url: str) -> None:
        found = [ManagementApi.of(url) for url in node_urls(broker_url)]
        self._nodes = [node for node in found if node is not None]
        self._told = ""
        self._ask_from = 0.0

    def run_once(self, now: float) -> int:
        if not self._nodes or now < self._ask_from:
            return 0
        node = self._nodes.pop(0)
        try:
            status = node.keep_policy(queue_policy(POOLS, node.vhost, node.version()))
        except (OSError, HTTPException, ValueError) as error:
            self._tell(f"the limits of queues cannot be set yet, {OTHERWISE} ({error})")
            self._nodes.append(node)
            return 0
        if status < HTTPStatus.MULTIPLE_CHOICES:
            if status != HTTPStatus.OK:
                logger.info("the limits of queues are set")
            self._told = ""
            self._nodes.insert(0, node)
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._nodes.append(node)
        else:
            self._nodes.append(node)
            self._ask_from = now + REFUSED_SECONDS
            self._tell(f"the limits of queues may not be set, {OTHERWISE} ({node.host}: {status})")
        return 0

    def _tell(self, text: str) -> None:
        """Once, however often it is so."""
        if not self._told:
            logger.warning(text)
        self._told = text
