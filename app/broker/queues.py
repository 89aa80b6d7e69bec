"""Declaration of job queues: durable, of the type that the deployment has chosen.

A queue that exists with other arguments, say of another type, cannot be declared and is used as it
is: messages are hints, and any queue carries them. Delete it, and it is declared as it should be.

``celeryconfig`` reads this in a gevent worker before monkey patching: do not import Celery here.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from kombu import Exchange, Queue

from app.config import settings

logger = logging.getLogger(__name__)

#: AMQP's codes for a queue that exists with other arguments, and for one that does not exist.
PRECONDITION_FAILED, NOT_FOUND = 406, 404
NAMED = re.compile(r"(?:for|no) queue '([^']+)'")

#: Queues that this process has found to exist with other arguments.
queues_with_other_arguments: set[str] = set()


class JobQueue(Queue):
    """A queue that is only looked for, not declared, if it exists with other arguments."""

    def queue_declare(
        self, nowait: bool = False, passive: bool = False, channel: Any = None
    ) -> Any:
        passive = passive or self.name in queues_with_other_arguments
        return super().queue_declare(nowait, passive, channel)  # type: ignore[no-untyped-call]  # kombu


def job_queue(name: str) -> Queue:
    """The queue of a pool or of a slice."""
    return JobQueue(  # type: ignore[no-untyped-call]  # kombu's
        name,
        Exchange(""),
        routing_key=name,
        durable=True,
        queue_arguments=queue_arguments(),
    )


def queue_arguments() -> dict[str, str] | None:
    """What a queue is declared with: limits are a policy's, which can change while it exists."""
    chosen = settings()
    return {"x-queue-type": chosen.queue_type} if chosen.amqp else None


def note_refusal(error: BaseException) -> bool:
    """Whether this error is about the declaration of a queue, which will be another one now."""
    found = NAMED.search(str(error))
    code = getattr(error, "reply_code", None)
    if found is None or code not in (PRECONDITION_FAILED, NOT_FOUND):
        return False
    if code == PRECONDITION_FAILED:
        logger.warning("a queue is used as it is, delete it to have it declared again: %s", error)
        queues_with_other_arguments.add(found[1])
    else:
        queues_with_other_arguments.discard(found[1])
    return True
