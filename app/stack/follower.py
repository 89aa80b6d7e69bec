"""What the supervisor does with the autoscaler's decisions, which `app.stack.autoscale` sends."""

from __future__ import annotations

from collections.abc import Mapping

from app.stack.home import Home
from app.stack.options import StackOptions
from app.stack.programs import worker
from app.stack.supervisor import Supervisor
from models.pools import is_job_queue


class Follower:
    """Makes the running workers match what the autoscaler wants.

    Slices that were named in ``SLICES`` stay as they are; those of tenants with reserved slots
    come, change and go with the reservation.
    """

    def __init__(self, supervisor: Supervisor, options: StackOptions, home: Home) -> None:
        self._supervisor = supervisor
        self._options = options
        self._home = home
        #: Slots by queue, of the slices that were started here.
        self._slices: dict[str, int] = {}

    def follow(
        self, workers: Mapping[str, int], slices: Mapping[str, int], reasons: Mapping[str, str]
    ) -> None:
        """Change what differs; workers that have to go finish their jobs first."""
        for pool, count in workers.items():
            name = f"worker-{pool}"
            if pool in self._options.workers and name in self._supervisor.programs:
                self._scale(name, count, reasons[pool])
        wanted = {
            queue: slots
            for queue, slots in slices.items()
            if queue not in self._options.slices and is_job_queue(queue)
        }
        for queue, slots in list(self._slices.items()):
            if wanted.get(queue) != slots:
                self._supervisor.drop(f"worker-{queue}")
                del self._slices[queue]
                if queue not in wanted:
                    self._supervisor.report(f"worker-{queue}: no longer reserved")
        for queue, slots in wanted.items():
            if queue not in self._slices:
                self._supervisor.add(worker(queue, slots, self._options, self._home))
                self._supervisor.report(f"worker-{queue}: {slots} slots")
                self._slices[queue] = slots

    def _scale(self, name: str, count: int, reason: str) -> None:
        before = self._supervisor.count(name)
        if before != count:
            self._supervisor.scale(name, count)
            self._supervisor.report(f"{name}: {count} instead of {before}: {reason}")
