"""A cluster of three machines: starting, stopping, breaking and mending it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

from app.stack.home import Home
from app.stack.identity import signal_process, wait_for_exit
from app.stack.ports import is_taken
from app.stack.postgres import DATABASE
from app.stack.programs import flask
from app.stack.screen import Screen
from app.stack.services import tail
from app.stack.spec import StackError
from loadtest.cluster.engines import RabbitMQNode, node_name
from loadtest.cluster.health import Health
from loadtest.cluster.layout import NUMBERS, PATRONI_PORT, USER, Layout
from loadtest.cluster.machine import Machine, processes_of
from loadtest.cluster.network import FRONT, Network
from loadtest.cluster.tools import variables
from loadtest.fleet import until

#: How long the engines and the processes may take to be ready, on a busy machine.
ENGINES_SECONDS = 180.0
READY_SECONDS = 120.0
STOP_SECONDS = 60.0


class NotInTime(StackError):
    """The cluster did not become what was awaited; the message ends with logs."""


class Cluster:
    """The cluster of a folder, running or not."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.machines = {number: Machine(layout, number) for number in NUMBERS}
        self.front = Machine(layout, FRONT)
        self.health = Health(layout, self.machines)

    @property
    def network(self) -> Network:
        return Network(self.front.supervisor_pid)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.layout.port}"

    def is_running(self) -> bool:
        return any(one.holder for one in (self.front, *self.machines.values()))

    def start(self, screen: Screen | None = None) -> None:
        """Start everything and return when applications are accepted and scored."""
        if self.is_running():
            raise StackError(
                f"a cluster is running in {self.layout.folder}; `make cluster-status` shows it, "
                "`make cluster-down` stops it"
            )
        if is_taken(self.layout.port):
            port = self.layout.port
            raise StackError(f"port {port} is in use; choose another: make cluster PORT={port + 1}")
        self.layout.save()
        self.layout.running.touch()
        try:
            self._bring_up(screen)
        except BaseException:  # also Ctrl-C
            self.stop()
            raise

    def _bring_up(self, screen: Screen | None) -> None:
        step = screen.step if screen else lambda *_: nullcontext()
        (self.layout.folder / "blobs").mkdir(exist_ok=True)
        with step("Three machines and their network"):
            self.front.start(lambda pid: Network(pid).create())
            for number in NUMBERS:
                self.start_machine(number)
        with step("etcd, PostgreSQL under Patroni"):
            self.wait(self.has_replicas, ENGINES_SECONDS, "PostgreSQL with two replicas")
        with step("RabbitMQ"):
            self.wait(self.has_nodes, ENGINES_SECONDS, "RabbitMQ with three nodes")
        with step("Migrations"):
            self.migrate()
        with step("API, schedulers, workers"):
            self.wait(self.is_ready, READY_SECONDS, "all machines to be ready")

    def has_replicas(self) -> bool:
        """Whether PostgreSQL has a leader and two replicas that it could be switched over to."""
        roles = sorted(self.health.postgres(number) for number in NUMBERS)
        return roles == ["leader", "sync replica", "sync replica"]

    def has_nodes(self) -> bool:
        """Whether all nodes of RabbitMQ see all of them."""
        return all(self.health.running_nodes(number) == len(NUMBERS) for number in NUMBERS)

    def is_ready(self) -> bool:
        """Whether every machine would accept and run a job."""
        return all(self.health.api(number) == "ready" for number in NUMBERS)

    def has_everything(self) -> bool:
        """Whether nothing is missing: members, replicas, copies of the queues."""
        return (
            self.has_replicas()
            and self.has_nodes()
            and all(self.health.etcd(number) for number in NUMBERS)
            and self.health.copies("medium") == len(NUMBERS)
            and self.is_ready()
        )

    def migrate(self) -> None:
        """Create role and database unless they are there, and migrate."""
        leader = self.wait_for_leader()
        password = self.layout.password
        for exists, create in (
            (
                f"SELECT 1 FROM pg_roles WHERE rolname = '{USER}'",
                f"CREATE ROLE {USER} LOGIN CREATEROLE BYPASSRLS PASSWORD '{password}'",
            ),
            (
                f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'",
                f"CREATE DATABASE {DATABASE} OWNER {USER}",
            ),
        ):
            if not self.health.sql(exists, leader, "postgres"):
                self.health.sql(create, leader, "postgres")
        key = str(self.layout.operator_key)
        command = flask("migrate", "--tenant", "demo", "--operator-key", key)
        # Patient: three servers share the time to connect, and this machine may be busy.
        patient = {"FAIRLINE_DB_CONNECT_SECONDS": "30", "FAIRLINE_DB_STATEMENT_SECONDS": "60"}
        self.machines[leader].inside(*command, seconds=180.0, variables=patient)
        self.layout.migrated.touch()

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait for it; how long that took."""
        began = time.monotonic()
        while not ready():
            if time.monotonic() - began > seconds:
                raise NotInTime(f"waited {seconds:g} s for {what}\n{self.logs()}")
            time.sleep(0.5)
        return time.monotonic() - began

    def logs(self, lines: int = 6) -> str:
        """The ends of all logs."""
        files = sorted(self.layout.folder.glob("machine-*/logs/*.log"))
        return "\n".join(f"== {file.parent.parent.name} {file.name}\n{tail(file, lines)}"
                         for file in files)  # fmt: skip

    def stop(self) -> int:
        """Stop everything, politely first; how many processes had to be killed at the end."""
        everything = [*self.machines.values(), self.front]
        for machine in everything:
            machine.thaw()
        for machine in self.machines.values():
            machine.stop()
        holders = [one.holder for one in self.machines.values()]
        wait_for_exit([one for one in holders if one], STOP_SECONDS)
        for machine in everything:
            machine.power_off()
        left = processes_of(self.layout.folder)
        for one in left:
            signal_process(one, signal.SIGKILL)
        wait_for_exit(left, 10.0)
        self.layout.running.unlink(missing_ok=True)
        return len(left)

    # ---- Faults

    def start_machine(self, number: int) -> None:
        """Switch a machine on; what it runs comes back by itself."""
        self.machines[number].start(lambda pid: self.network.attach(number, pid))

    def stop_machine(self, number: int) -> None:
        """Switch a machine off, as a loss of power would."""
        self.machines[number].power_off()

    def cut(self, source: int, target: int, one_way: bool = False) -> None:
        """Drop what one machine sends to another, and unless ``one_way`` what it gets from it."""
        self.network.cut(source, target, one_way)

    def isolate(self, number: int) -> None:
        """Cut a machine off the others and the front."""
        for other in (*NUMBERS, FRONT):
            if other != number:
                self.network.cut(number, other)

    def heal(self) -> None:
        """Undo every cut."""
        self.network.heal()

    def patroni_leader(self) -> int | None:
        """The machine whose PostgreSQL takes writes; None while there is none."""
        return self.health.patroni_leader()

    def wait_for_leader(self, seconds: float = 60.0) -> int:
        """The same, as soon as there is one."""
        leader = until(self.patroni_leader, seconds, "a leader of PostgreSQL")
        assert leader is not None
        return leader

    def queue_leader(self, pool: str) -> int | None:
        """The machine whose RabbitMQ leads the queue of a pool; None while there is none."""
        return self.health.queue_leaders().get(pool)

    def wipe_rabbitmq(self, number: int) -> None:
        """Replace a RabbitMQ node by an empty one, which joins the others again."""
        machine, others = self.machines[number], [n for n in NUMBERS if n != number]
        machine.ask(command="scale", name="rabbitmq", count=0)
        try:
            until(lambda: "rabbitmq" not in machine.processes(), 30.0, "RabbitMQ to stop")
            self.rabbitmqctl(others[0], "forget_cluster_node", node_name(number))
            RabbitMQNode(self.layout, number).wipe()
        finally:
            machine.ask(command="scale", name="rabbitmq", count=1)

    def rabbitmqctl(self, number: int, *words: str) -> str:
        """Run RabbitMQ's own command on a machine."""
        command = str(self.layout.rabbitmq / "rabbitmqctl")
        known = variables(self.layout, number)
        return self.machines[number].inside(command, *words, variables=known)

    def rebuild_postgres(self, number: int) -> None:
        """Throw away the data of a replica and copy the leader's again; returns as it begins."""
        if self.health.postgres(number) == "leader":
            raise StackError(f"machine {number} has the leader: only a replica can be rebuilt")
        self.health.get(number, PATRONI_PORT, "/reinitialize", {"force": True})
        until(lambda: not self.health.postgres(number), 30.0, "Patroni to begin")


def new_cluster(
    folder: Path, port: int, patroni: Path, rabbitmq: Path, settings: Mapping[str, str]
) -> Cluster:
    """The cluster of a folder: its layout is kept, apart from what may change between starts."""
    Home(folder).prepare()
    try:
        kept = {"password": Layout.load(folder).password}
    except StackError:
        kept = {}
    return Cluster(Layout(folder, port, patroni, rabbitmq, dict(settings), **kept))
