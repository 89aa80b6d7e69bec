"""Which faults happen to a cluster, in which order, and for how long; all from one seed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

#: Faults of engines and machines, one at a time: how often in a round, and how long they last.
#: A machine that vanishes does so for longer than Patroni believes in a leader that is silent.
ENGINES: Mapping[str, tuple[int, float, float]] = {
    "postgres killed": (2, 0.0, 0.0),
    "postgres frozen": (1, 3.0, 30.0),
    "patroni killed": (1, 0.0, 0.0),
    "patroni frozen": (1, 5.0, 35.0),
    "etcd killed": (1, 0.0, 0.0),
    "etcd frozen": (1, 3.0, 15.0),
    "rabbitmq killed": (2, 0.0, 0.0),
    "rabbitmq frozen": (1, 3.0, 20.0),
    "machine off": (2, 40.0, 50.0),
    "machine frozen": (1, 5.0, 45.0),
    "machine isolated": (2, 40.0, 50.0),
    "two machines cut apart": (1, 10.0, 30.0),
    "two machines cut one way": (1, 10.0, 30.0),
    "no way to PostgreSQL": (1, 5.0, 20.0),
    "no way to RabbitMQ": (1, 5.0, 20.0),
    "switchover": (1, 0.0, 0.0),
    "rolling restart of PostgreSQL": (1, 0.0, 0.0),
    "rolling restart of RabbitMQ": (1, 0.0, 0.0),
    "rolling restart of etcd": (1, 0.0, 0.0),
    "rolling restart of Fairline": (1, 0.0, 0.0),
    "rabbitmq wiped": (1, 0.0, 0.0),
    "postgres rebuilt": (1, 0.0, 0.0),
}
#: After these a machine is gone for its users, and the other two must do.
MACHINE_LOST = ("machine off", "machine isolated")
#: In these, workers may lose their leases: nothing that befalls etcd or the broker may cost a run.
COSTS_LEASES = frozenset(
    kind
    for kind in ENGINES
    if kind.startswith(("postgres ", "patroni ", "machine ", "two machines "))
    or kind in ("no way to PostgreSQL", "switchover", "rolling restart of PostgreSQL")
)
#: Faults of Fairline's own processes, all the while.
PROCESSES: Mapping[str, tuple[int, float, float]] = {
    "killed": (6, 0.0, 0.0),
    "frozen": (2, 1.0, 15.0),
    "restarted": (2, 0.0, 0.0),
}
TARGETS = (
    *("api", "api process", "scheduler-1"),
    *("worker-short-1", "worker-medium-1", "worker-long-1", "worker-long-1 child"),
)
#: Between two faults of processes.
PAUSE_SECONDS = (4.0, 12.0)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One planned fault."""

    kind: str
    #: Chooses the machine.
    choice: float
    #: How long it lasts.
    seconds: float = 0.0
    #: The process, if it befalls one of Fairline's.
    target: str = ""
    #: How long to wait before it.
    pause: float = 0.0

    def __str__(self) -> str:
        much = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.target} {self.kind}{much}".strip()


def engine_faults(seed: int, kinds: Sequence[str] = tuple(ENGINES)) -> Iterator[PlannedFault]:
    """Faults of engines and machines without end: one shuffled round after the other."""
    chance = Random(f"{seed}/engines")
    cards = [kind for kind in kinds for _ in range(ENGINES[kind][0])]
    while True:
        for kind in chance.sample(cards, len(cards)):
            _, least, most = ENGINES[kind]
            yield PlannedFault(kind, chance.random(), chance.uniform(least, most))


def process_faults(seed: int) -> Iterator[PlannedFault]:
    """Faults of Fairline's processes without end."""
    chance = Random(f"{seed}/processes")
    cards = [kind for kind, (count, *_) in PROCESSES.items() for _ in range(count)]
    while True:
        for kind in chance.sample(cards, len(cards)):
            _, least, most = PROCESSES[kind]
            target, choice = chance.choice(TARGETS), chance.random()
            seconds, pause = chance.uniform(least, most), chance.uniform(*PAUSE_SECONDS)
            yield PlannedFault(kind, choice, seconds, target, pause)


def each_kind(times: int, seed: int) -> list[PlannedFault]:
    """Every kind of engine fault so often, in the order of the table."""
    chance = Random(f"{seed}/each")
    return [
        # The first of a kind befalls a leader, where there is one.
        PlannedFault(kind, chance.random() / 2 if turn == 0 else chance.random(), most)
        for kind, (_, _, most) in ENGINES.items()
        for turn in range(times)
    ]
