"""Celery's remote control: a queue of its own for each connection of a worker, and no revoking.

The queue is exclusive. One whose node was lost may stay locked until that node is back, because
RabbitMQ does not always remove it; a worker that declares the same name would wait for it.
"""

from __future__ import annotations

from typing import Any

from celery.app.control import Control
from kombu import Queue
from kombu.pidbox import Mailbox

from app.config import settings
from models.jobs.ids import new_id

#: Commands that end a task or keep one from starting. Its job would be neither cancelled nor run:
#: its row says that it is in flight, and each further message for it would be dropped. The time
#: limits of a task are those of its type, and of the process around it.
REFUSED_COMMANDS = ("revoke", "revoke_by_stamped_headers", "terminate", "time_limit")


class JobMailbox(Mailbox):
    """Each queue has a new name, which nobody needs to know: commands come by an exchange."""

    def get_queue(self, hostname: str) -> Queue:
        queue: Queue = super().get_queue(hostname)  # type: ignore[no-untyped-call]  # kombu's
        if settings().amqp:
            queue.name = f"{queue.name}.{new_id()}"
        return queue


class JobControl(Control):  # type: ignore[misc]  # Celery has no types
    """Named by ``app/celery.py``."""

    Mailbox = JobMailbox


def refuse_commands() -> None:
    """Let this worker refuse what would leave a job neither cancelled nor run."""
    from celery.worker.control import Panel  # only workers have it

    for name in REFUSED_COMMANDS:
        Panel.data[name] = refuse


def refuse(state: Any, *args: Any, **given: Any) -> Any:
    """Answer a command that is not obeyed."""
    return {"error": "Nothing was done. Cancel the job: DELETE /jobs/{id}, or in the console."}
