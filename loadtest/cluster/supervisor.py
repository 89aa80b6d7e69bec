"""``python -m loadtest.cluster.supervisor <folder> <number>``: the first process inside a machine.

Supervises what runs there, as ``make up`` does on a machine without a cluster, and replaces what
dies. The front is such a machine too, which runs HAProxy and nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from app.stack.control import Answer, ControlServer, Request
from app.stack.environment import environment
from app.stack.home import Home
from app.stack.options import read_options
from app.stack.programs import STOP_SCHEDULER, STOP_SERVICE, api, scheduler, worker
from app.stack.screen import Screen
from app.stack.spec import ProcessSpec, StackError
from app.stack.supervisor import Program, StopRequested, Supervisor
from loadtest.cluster.engines import Etcd, Patroni, RabbitMQNode
from loadtest.cluster.front import haproxy
from loadtest.cluster.layout import Layout
from loadtest.cluster.network import FRONT
from models.pools import POOLS

#: Processes of a prefork worker; green ones have the slots of their pool.
PREFORK_SLOTS = 1


def engines(layout: Layout, number: int) -> list[Program]:
    """What keeps data; stops last, in the reverse order."""
    rabbitmq = RabbitMQNode(layout, number)
    rabbitmq.prepare()
    patroni, etcd = Patroni(layout, number).processes(), Etcd(layout, number).processes()
    specs: Sequence[ProcessSpec] = [*etcd, *patroni, *rabbitmq.processes()]
    return [
        Program(spec.name, always(spec), STOP_SERVICE + len(specs) - place, scalable=True)
        for place, spec in enumerate(specs)
    ]


def fairline(layout: Layout, number: int, home: Home) -> list[Program]:
    """The processes of Fairline: two of the API, a scheduler, a worker of each pool."""
    options = read_options(layout.variables(number))
    slots = {
        name: PREFORK_SLOTS if pool.concurrency == "prefork" else pool.slots
        for name, pool in POOLS.items()
    }
    return [
        replace(api(), scalable=True),
        Program("scheduler", scheduler, STOP_SCHEDULER, scalable=True),
        *(worker(name, count, options, home) for name, count in slots.items()),
    ]


def always(spec: ProcessSpec) -> Callable[[int], ProcessSpec]:
    return lambda _: spec


def answer(supervisor: Supervisor, request: Request) -> Answer:
    """Serve one control request: ``status``, or ``scale`` to stop a process and start it again."""
    if request["command"] == "scale":
        supervisor.scale(request["name"], int(request["count"]))
    now = time.monotonic()
    rows = [
        {
            "name": slot.spec.name,
            "state": slot.state,
            "pid": slot.child.pid if slot.child else None,
            "up_seconds": now - slot.child.started_at if slot.child else 0.0,
            "restarts": slot.restarts,
        }
        for slot in supervisor.slots
    ]
    return {"processes": rows}


def supervise(layout: Layout, number: int) -> None:
    """Run the machine until it is asked to stop."""
    home = Home(layout.machine(number))
    home.prepare()
    variables = layout.variables(number)
    options = read_options(variables)
    seen = environment(options, home, options.database_url, options.broker_url)
    supervisor = Supervisor(home, seen, Screen().event, owns_children=True)
    control = ControlServer(home, lambda request: answer(supervisor, request))
    supervisor.pause = control.pause
    control.handle_signals(supervisor.request_stop)
    try:
        if number == FRONT:
            spec = haproxy(layout)
            supervisor.add(Program(spec.name, always(spec), STOP_SERVICE))
        else:
            for program in engines(layout, number):
                supervisor.add(program)
            supervisor.wait(layout.migrated.exists)
            for program in fairline(layout, number, home):
                supervisor.add(program)
        supervisor.wait(lambda: False)
    except StopRequested:
        pass
    finally:
        supervisor.stop_all()
        control.close()


def main() -> int:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    try:
        supervise(Layout.load(folder), number)
    except StackError as error:
        print(f"fairline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
