"""Fairline as a contender: the same processes as the stack starts, one worker of the short pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.accept import POLLED
from loadtest.fairline import Fairline
from loadtest.fleet import Fleet
from loadtest.http_bytes import Request, applications
from loadtest.lab.peers.contender import Contender, Counter, Rows
from models.pools import POOLS

#: Every job that ended, in whatever way; kept by the same statements that end jobs.
ENDED = """
    SELECT coalesce(sum(succeeded + dead + cancelled + expired), 0) FROM job_counts
    WHERE tenant_id = 0 AND pool = 'short'
"""
#: The youngest first: they are at the end of the line.
APPLICATIONS = """
    SELECT id::text FROM jobs WHERE type = 'score_application' AND status = '{status}'
    ORDER BY id DESC LIMIT {most}
"""
WAITING = """
    SELECT coalesce(sum(queued + dispatched), 0) FROM job_counts
    WHERE tenant_id = 0 AND pool = 'medium'
"""
#: All that jobs leave behind; tenants and schema stay.
EMPTY = """
    TRUNCATE jobs, applications, job_counts, attempts, checkpoints, events, tallies, verdicts,
             usage, express_lanes, processes, leaders
"""


class Ours(Contender):
    """Fairline: a row a job, written before the answer and settled after the run."""

    name = "Fairline"
    key = "fairline"
    tuning = (
        f"one gevent worker of the short pool with its {POOLS['short'].slots} slots and one "
        "scheduler, as `make up` starts them"
    )

    def __init__(self, fleet: Fleet, *, name: str = "peers_fairline", **settings: str) -> None:
        super().__init__(fleet)
        self._name = name
        self.fairline = Fairline(
            fleet,
            served_pools="medium",
            name=name,
            job_modules="loadtest.baselines.peer_jobs",
            **settings,
        )
        self.port = self.fairline.port
        self.fairline.env |= self.env
        self._rows = Rows(self.fairline.env["FAIRLINE_DATABASE_URL"])

    @property
    def singles(self) -> Sequence[Request]:
        return applications(500)

    @property
    def workers(self) -> list[str]:
        return [name for name in self.fleet.children if name.startswith("worker-")]

    @property
    def parts(self) -> Mapping[str, Sequence[str]]:
        return {"front door": ["api"], "scheduler": ["scheduler"], "workers": self.workers}

    def open(self) -> None:
        self.fairline.start_api()
        self.fairline.start_scheduler()

    @property
    def is_working(self) -> bool:
        return "worker-short-1" in self.fleet.children

    def admit(self) -> None:
        """Scheduler and a worker of the submissions' pool are at work, as in real life."""
        self.fairline.start_worker("medium")
        self.fairline.await_ready()

    def work(self) -> None:
        self.fairline.start_worker("short")

    def count_from_now(self) -> Counter:
        return self._rows.count_from_now(ENDED)

    def applications(self, status: str) -> list[Request]:
        """Questions after applications in this state."""
        found = self._rows.texts(APPLICATIONS.format(status=status, most=POLLED))
        return [Request("GET", f"/applications/{name}") for name in found]

    def waiting(self) -> int:
        """Jobs in the line of the medium pool, or on their way to its worker."""
        return self._rows.read(WAITING)

    def clear_accepted(self) -> None:
        """Nothing: those wait in the medium pool, whose worker no longer runs."""

    def forget(self) -> None:
        self._rows.run(EMPTY)

    def remove(self) -> None:
        self._rows.close()
        self.fleet.postgres.service.drop_database(self._name)
