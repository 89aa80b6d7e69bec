"""What the engines of a cluster say about themselves, each asked in the network of its machine.

So a machine that is cut off answers too, and says what it believes.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import psycopg2

from app.stack.postgres import DATABASE, SUPERUSER, AdminConnection
from app.stack.spec import StackError
from loadtest.cluster.engines import RabbitMQNode, node_number
from loadtest.cluster.layout import (
    API_PORT,
    ETCD_PORT,
    MANAGEMENT_PORT,
    PATRONI_PORT,
    POSTGRES_PORT,
    USER,
    Layout,
)
from loadtest.cluster.machine import Machine
from loadtest.cluster.network import entered
from models.pools import POOLS

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SCHEDULER = "SELECT holder FROM leaders WHERE role = 'scheduler' AND expires_at > now()"


class Health:
    """Asks the machines of a cluster."""

    def __init__(self, layout: Layout, machines: Mapping[int, Machine]) -> None:
        self._layout = layout
        self._machines = machines

    def get(self, number: int, port: int, path: str, body: Any = None) -> Any:
        """The JSON that a service of that machine answers, or None."""
        machine = self._machines[number]
        login = base64.b64encode(f"{USER}:{self._layout.password}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = f"http://{machine.address}:{port}{path}"
        request = urllib.request.Request(url, data, headers)
        with suppress(OSError, ValueError, StackError), entered(machine.supervisor_pid):
            try:
                with _direct.open(request, timeout=2.0) as response:
                    return json.loads(response.read() or b"null")
            except urllib.error.HTTPError as error:
                with error:
                    return json.loads(error.read())
        return None

    def etcd(self, number: int) -> str:
        """``leader`` or ``follower``; empty if it does not answer, or has lost the others."""
        said = self.get(number, ETCD_PORT, "/v3/maintenance/status", {}) or {}
        leader = said.get("leader", "0")
        if leader == "0":
            return ""
        return "leader" if leader == said["header"]["member_id"] else "follower"

    def patroni(self, number: int) -> dict[str, Any]:
        """What Patroni knows about its PostgreSQL."""
        found: dict[str, Any] = self.get(number, PATRONI_PORT, "/patroni") or {}
        return found

    def postgres(self, number: int) -> str:
        """``leader``, ``sync replica`` or ``replica``; empty if it does not serve."""
        said = self.patroni(number)
        if said.get("role") in ("primary", "master") and said.get("state") == "running":
            return "leader"
        following = said.get("replication_state") == "streaming"
        if said.get("role") != "replica" or not following:
            return ""
        return "sync replica" if {"sync_standby", "quorum_standby"} & said.keys() else "replica"

    def patroni_leader(self) -> int | None:
        """The machine whose PostgreSQL takes writes."""
        leaders = [number for number in self._machines if self.postgres(number) == "leader"]
        return leaders[0] if len(leaders) == 1 else None

    def rabbitmq(self, number: int) -> str:
        """``member``; empty if it does not serve."""
        machine = self._machines[number]
        with suppress(StackError), entered(machine.supervisor_pid):
            return "member" if RabbitMQNode(self._layout, number).is_ready() else ""
        return ""

    def queues(self, number: int) -> dict[str, dict[str, Any]]:
        """The job queues as a node sees them, if it sees a majority of their members."""
        listed = self.get(number, MANAGEMENT_PORT, "/api/queues?disable_stats=true") or []
        return {
            queue["name"]: queue
            for queue in listed
            if isinstance(queue, dict) and len(queue.get("online", ())) >= 2
        }

    def queue_leaders(self) -> dict[str, int]:
        """The machine that leads each job queue, as most of the nodes say."""
        said: dict[str, Counter[int]] = {}
        for number in self._machines:
            for name, queue in self.queues(number).items():
                if leader := queue.get("leader"):
                    said.setdefault(name, Counter())[node_number(leader)] += 1
        return {name: count.most_common(1)[0][0] for name, count in said.items()}

    def running_nodes(self, number: int) -> int:
        """The RabbitMQ nodes that one of them sees running."""
        listed = self.get(number, MANAGEMENT_PORT, "/api/nodes?disable_stats=true") or []
        return sum(isinstance(node, dict) and bool(node.get("running")) for node in listed)

    def copies(self, name: str) -> int:
        """Members of a queue that are online."""
        return max(len(self.queues(n).get(name, {}).get("online", ())) for n in self._machines)

    def api(self, number: int) -> str:
        """``ready`` or ``degraded``, else why not; empty if nothing answers."""
        said = self.get(number, API_PORT, "/readyz")
        if not isinstance(said, dict):
            return ""
        broken = [name for name, check in said["checks"].items() if not check["ok"]]
        return f"not ready: {', '.join(broken)}" if broken else str(said["status"])

    def scheduler_leader(self) -> str:
        """The name of the scheduler that leads."""
        leader = self.patroni_leader()
        with suppress(psycopg2.Error, StackError):
            rows = self.sql(SCHEDULER, leader) if leader else []
            return str(rows[0][0]) if rows else ""
        return ""

    def sql(self, statement: str, number: int, database: str = DATABASE) -> Sequence[Any]:
        """What the PostgreSQL of a machine answers to its superuser."""
        machine = self._machines[number]
        with entered(machine.supervisor_pid):
            connection = psycopg2.connect(
                connection_factory=AdminConnection,
                dbname=database,
                user=SUPERUSER,
                password=self._layout.password,
                host=machine.address,
                port=POSTGRES_PORT,
                connect_timeout=3,
            )
        with closing(connection), connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def rows(self, *others: Machine) -> list[tuple[str, ...]]:
        """Each process: machine, name, state, role or health, age, restarts."""
        leaders, scheduler = self.queue_leaders(), self.scheduler_leader()
        table: list[tuple[str, ...]] = []
        for machine in (*self._machines.values(), *others):
            try:
                listed = machine.ask(command="status")["processes"]
            except StackError:
                table.append((machine.name, "", "off" if machine.holder is None else "silent"))
                continue
            said = {} if machine in others else self._roles(machine, leaders, scheduler)
            table += [
                (machine.name, row["name"], row["state"], said.get(row["name"], ""),
                 f"{row['up_seconds']:.0f} s", str(row["restarts"]))
                for row in listed
            ]  # fmt: skip
        return table

    def _roles(
        self, machine: Machine, leaders: Mapping[str, int], scheduler: str
    ) -> dict[str, str]:
        """Role or health of the processes of a machine that have one."""
        number = machine.number
        led = ", ".join(pool for pool in POOLS if leaders.get(pool) == number)
        serves = self.rabbitmq(number)
        return {
            "etcd": self.etcd(number) or "no quorum",
            "patroni": self.postgres(number) or "not serving",
            "rabbitmq": (f"leads {led}" if led else serves) if serves else "not serving",
            "api": self.api(number) or "not serving",
            "scheduler-1": "leader" if f"@{machine.name}:" in scheduler else "standby",
        }
