"""Faults of the engines and machines of a cluster, each for as long as a block lasts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from app.stack.spec import StackError
from loadtest.cluster.cluster import Cluster
from loadtest.cluster.layout import AMQP_PORT, NUMBERS, PATRONI_PORT, POSTGRES_PORT
from loadtest.fleet import until

#: How long one machine may take to be as before during a rolling restart.
STEP_SECONDS = 120.0
FAIRLINE = ("api", "scheduler-1", "worker-short-1", "worker-medium-1", "worker-long-1")


def chosen(choice: float, leader: int | None) -> int:
    """The leader half of the time, else one of the others."""
    others = [number for number in NUMBERS if number != leader]
    if leader is not None and choice < 0.5:
        return leader
    return others[int((choice * 2 % 1) * len(others))]


def database_machine(cluster: Cluster, choice: float) -> int:
    return chosen(choice, cluster.patroni_leader())


def broker_machine(cluster: Cluster, choice: float) -> int:
    return chosen(choice, cluster.queue_leader("medium"))


def role(cluster: Cluster, number: int) -> str:
    """A machine, and what it leads."""
    leads = ["PostgreSQL"] if cluster.patroni_leader() == number else []
    leads += ["RabbitMQ"] if cluster.queue_leader("medium") == number else []
    return f"{number} ({', '.join(leads)})" if leads else str(number)


def killed(name: str) -> Callable[[Cluster, float], AbstractContextManager[str]]:
    @contextmanager
    def fault(cluster: Cluster, choice: float) -> Iterator[str]:
        choose = broker_machine if name == "rabbitmq" else database_machine
        number = choose(cluster, choice)
        where = role(cluster, number)
        cluster.machines[number].kill(name)
        yield where

    return fault


def frozen(name: str | None) -> Callable[[Cluster, float], AbstractContextManager[str]]:
    """Of a process, or of a whole machine."""

    @contextmanager
    def fault(cluster: Cluster, choice: float) -> Iterator[str]:
        choose = broker_machine if name == "rabbitmq" else database_machine
        machine = cluster.machines[choose(cluster, choice)]
        where = role(cluster, machine.number)
        machine.freeze(name)
        try:
            yield where
        finally:
            machine.thaw()  # all of it: a frozen process may have been replaced meanwhile

    return fault


def lost(
    lose: Callable[[Cluster, int], None], undo: Callable[[Cluster, int], None]
) -> Callable[[Cluster, float], AbstractContextManager[str]]:
    """Of a whole machine: without power, or without its network."""

    @contextmanager
    def fault(cluster: Cluster, choice: float) -> Iterator[str]:
        number = database_machine(cluster, choice)
        where = role(cluster, number)
        lose(cluster, number)
        try:
            yield where
        finally:
            undo(cluster, number)

    return fault


def cut(one_way: bool) -> Callable[[Cluster, float], AbstractContextManager[str]]:
    @contextmanager
    def fault(cluster: Cluster, choice: float) -> Iterator[str]:
        source = database_machine(cluster, choice)
        target = [number for number in NUMBERS if number != source][int(choice * 64) % 2]
        where = f"{role(cluster, source)} to {role(cluster, target)}"
        cluster.cut(source, target, one_way)
        try:
            yield where
        finally:
            cluster.heal()

    return fault


def no_way_to(port: int) -> Callable[[Cluster, float], AbstractContextManager[str]]:
    """A machine does not reach an engine on the others, but everything else."""

    @contextmanager
    def fault(cluster: Cluster, choice: float) -> Iterator[str]:
        number = database_machine(cluster, choice)
        where = role(cluster, number)
        for other in NUMBERS:
            if other != number:
                cluster.network.cut(number, other, one_way=True, port=port)
        try:
            yield where
        finally:
            cluster.heal()

    return fault


@contextmanager
def switchover(cluster: Cluster, choice: float) -> Iterator[str]:
    yield switch(cluster, choice)


def switch(cluster: Cluster, choice: float) -> str:
    """Let Patroni hand the leadership to a synchronous replica.

    Asked again until it does: it refuses, or drops the request, if the replica does not answer
    at once or has not caught up, as just after a restart.
    """
    old = cluster.wait_for_leader()

    def switched() -> bool:
        able = synchronous(cluster)
        if able and cluster.patroni_leader() == old:
            wanted = {"leader": f"m{old}", "candidate": f"m{able[int(choice * len(able))]}"}
            cluster.health.get(old, PATRONI_PORT, "/switchover", wanted)
        return cluster.patroni_leader() not in (None, old)

    until(switched, STEP_SECONDS, "the switchover", pause=2.0)
    return f"{old} to {cluster.patroni_leader()}"


def synchronous(cluster: Cluster) -> list[int]:
    return [number for number in NUMBERS if cluster.health.postgres(number) == "sync replica"]


@contextmanager
def rolling_postgres(cluster: Cluster, choice: float) -> Iterator[str]:
    """Replicas first, then the former leader: as for a minor version."""
    leader = cluster.wait_for_leader()
    for number in (*(n for n in NUMBERS if n != leader), leader):
        if cluster.patroni_leader() == number:
            switch(cluster, choice)
            until(cluster.has_replicas, STEP_SECONDS, "two replicas")
        cluster.health.get(number, PATRONI_PORT, "/restart", {})
        until(cluster.has_replicas, STEP_SECONDS, "two replicas")
    yield "all"


def rolling(
    names: tuple[str, ...], back: Callable[[Cluster], bool]
) -> Callable[[Cluster, float], AbstractContextManager[str]]:
    """Each machine's processes are asked to end, one machine after the other."""

    @contextmanager
    def fault(cluster: Cluster, choice: float) -> Iterator[str]:
        for number in NUMBERS:
            before = cluster.machines[number].processes()
            for name in names:
                with suppress(StackError):
                    cluster.machines[number].kill(name, signal.SIGTERM)
            until(lambda: replaced(cluster, number, names, before), STEP_SECONDS, "other processes")  # noqa: B023
            until(lambda: back(cluster), STEP_SECONDS, f"machine {number}")
        yield "all"

    return fault


def replaced(cluster: Cluster, number: int, names: tuple[str, ...], before: dict[str, int]) -> bool:
    now = cluster.machines[number].processes()
    return all(now.get(name, before.get(name)) != before.get(name) for name in names)


@contextmanager
def wiped(cluster: Cluster, choice: float) -> Iterator[str]:
    number = broker_machine(cluster, choice)
    where = role(cluster, number)
    cluster.wipe_rabbitmq(number)
    yield where


@contextmanager
def rebuilt(cluster: Cluster, choice: float) -> Iterator[str]:
    leader = cluster.wait_for_leader()
    number = [number for number in NUMBERS if number != leader][int(choice * 2)]
    cluster.rebuild_postgres(number)
    yield str(number)


def has_queues(cluster: Cluster) -> bool:
    return cluster.has_nodes() and cluster.health.copies("medium") == len(NUMBERS)


def has_etcd(cluster: Cluster) -> bool:
    return all(cluster.health.etcd(number) for number in NUMBERS)


#: By the names of the plan; each gives the machine that it befalls.
FAULTS: dict[str, Callable[[Cluster, float], AbstractContextManager[str]]] = {
    "postgres killed": killed("postgres"),
    "postgres frozen": frozen("postgres"),
    "patroni killed": killed("patroni"),
    "patroni frozen": frozen("patroni"),
    "etcd killed": killed("etcd"),
    "etcd frozen": frozen("etcd"),
    "rabbitmq killed": killed("rabbitmq"),
    "rabbitmq frozen": frozen("rabbitmq"),
    "machine off": lost(Cluster.stop_machine, Cluster.start_machine),
    "machine frozen": frozen(None),
    "machine isolated": lost(Cluster.isolate, lambda cluster, _: cluster.heal()),
    "two machines cut apart": cut(one_way=False),
    "two machines cut one way": cut(one_way=True),
    "no way to PostgreSQL": no_way_to(POSTGRES_PORT),
    "no way to RabbitMQ": no_way_to(AMQP_PORT),
    "switchover": switchover,
    "rolling restart of PostgreSQL": rolling_postgres,
    "rolling restart of RabbitMQ": rolling(("rabbitmq",), has_queues),
    "rolling restart of etcd": rolling(("etcd",), has_etcd),
    "rolling restart of Fairline": rolling(FAIRLINE, Cluster.is_ready),
    "rabbitmq wiped": wiped,
    "postgres rebuilt": rebuilt,
}
