"""The libraries that Fairline is compared with, each as its own documentation recommends."""

from __future__ import annotations

from kombu import Connection
from procrastinate.schema import SchemaManager

from loadtest.fleet import Fleet, celery_worker
from loadtest.lab.peers.contender import Contender, Counter, ends_in
from loadtest.plain import PlainCelery

CELERY = "loadtest.baselines.plain_celery.batch"
WEB = "loadtest.baselines.web"


class Celery(Contender):
    """Flask, SQLAlchemy and Celery: a row, a commit and a confirmed message per job."""

    name = "plain Celery"
    key = "celery"
    application = f"{CELERY}:create_app()"
    tuning = (
        "one gevent worker with 50 slots, acks_late, prefetch of 4 per slot, broker_heartbeat 0, "
        "publisher confirms, 20 database connections per process"
    )
    takes_applications = True
    count_done = "SELECT count(*) FROM applications WHERE finished_at IS NOT NULL"
    delete_jobs = "TRUNCATE applications"

    # Tried with no-op tasks: gevent with 10 and 50 slots and prefork with 2 are alike. With 10-ms
    # tasks prefork does half of what gevent does. A second process was no faster end to end.
    pool, slots = "gevent", 50

    def __init__(self, fleet: Fleet, *, acks_late: bool = True) -> None:
        if not acks_late:
            self.name, self.key = "plain Celery, its default", "celery-early"
        super().__init__(fleet)
        self._plain = PlainCelery(fleet, name=f"peers_{self.key}")
        self.env |= self._plain.env | ({} if acks_late else {"PEER_ACKS": "early"})
        self.database_url = self.env["PLAIN_DATABASE_URL"]

    def work(self) -> None:
        self.start_worker(*celery_worker(CELERY, self.pool, self.slots, f"{self.key}1"))

    def forget(self) -> None:
        self._plain.empty_queue()
        super().forget()

    def remove(self) -> None:
        self.engine.dispose()
        self._plain.remove()


class Dramatiq(Contender):
    """Flask and Dramatiq: a persistent message per job, no row."""

    name = "Dramatiq"
    key = "dramatiq"
    application = f"{WEB}:dramatiq()"
    tuning = (
        "2 processes of 8 threads, its default middleware and prefetch; messages persistent, "
        "but sent without the broker's confirm, which is its default"
    )

    # Dramatiq's own defaults on two cores. One process drains less than half as fast; 16 threads
    # are no faster.
    processes, slots = 2, 16

    def __init__(self, fleet: Fleet, *, confirm: bool = False) -> None:
        if confirm:
            self.name = "Dramatiq, confirmed"
            self.key = "dramatiq-confirmed"
            self.tuning = "as before, with confirm_delivery: the broker confirms each message"
        super().__init__(fleet)
        self.env |= {
            # pika treats what follows the port as the name of a virtual host.
            "PEER_BROKER_URL": fleet.rabbitmq.service.url().rstrip("/"),
            "PEER_QUEUE": self.key,
            "PEER_CONFIRM": "1" if confirm else "0",
        }

    def work(self) -> None:
        self.start_worker(
            *("dramatiq", "loadtest.baselines.dramatiq_tasks"),
            *("--processes", str(self.processes), "--threads", str(self.slots // self.processes)),
        )

    def count_from_now(self) -> Counter:
        return ends_in(self.witness)

    def forget(self) -> None:
        with Connection(self.fleet.rabbitmq.service.url()) as connection:
            connection.default_channel.queue_purge(self.key)

    def remove(self) -> None:
        self.engine.dispose()
        with Connection(self.fleet.rabbitmq.service.url()) as connection:
            for suffix in ("", ".DQ", ".XQ"):
                connection.default_channel.queue_delete(self.key + suffix)


class Procrastinate(Contender):
    """Flask and Procrastinate: a row per job, fetched one by one."""

    name = "Procrastinate"
    key = "procrastinate"
    application = f"{WEB}:procrastinate()"
    tuning = (
        "2 worker processes of 10 coroutines with up to 20 database connections each, woken by "
        "NOTIFY; psycopg with its C speed-ups"
    )

    count_done = """
        SELECT count(*) FROM procrastinate_jobs
        WHERE status = 'succeeded' AND left(task_name, 5) = 'peer.'
    """
    delete_jobs = "TRUNCATE procrastinate_jobs CASCADE"

    # One process with 10 coroutines is slower; 30 coroutines, in one process or two, are no
    # clear gain.
    processes, slots = 2, 20

    def __init__(self, fleet: Fleet, *, retry_stalled: bool = False) -> None:
        if retry_stalled:
            self.name, self.key = "Procrastinate, stalled jobs retried", "procrastinate-retry"
        super().__init__(fleet)
        self._database = f"peers_{self.key}"
        fleet.postgres.service.create_database(self._database)
        self.database_url = fleet.postgres.service.url(self._database)
        self.env |= {
            "PEER_DATABASE_URL": self.database_url.replace("+psycopg2", ""),
            "PEER_RETRY_STALLED": "1" if retry_stalled else "0",
            "PROCRASTINATE_APP": "loadtest.baselines.procrastinate_tasks.app",
        }
        self.execute(SchemaManager.get_schema())

    def work(self) -> None:
        for number in range(1, self.processes + 1):
            self.start_worker(
                *("procrastinate", "--log-level", "warning", "worker"),
                *("--concurrency", str(self.slots // self.processes), "--name", f"worker{number}"),
                number=number,
            )

    def remove(self) -> None:
        self.engine.dispose()
        self.fleet.postgres.service.drop_database(self._database)
