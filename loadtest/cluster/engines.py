"""The engines of a machine: a member of etcd, PostgreSQL under Patroni, a RabbitMQ node.

Their timeouts are as short as the engines allow: a failover takes seconds, except where a
machine vanishes, when Patroni waits for its least ``ttl`` of 20 s. Nothing that was confirmed is
lost: a commit is on two machines, a message on two.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from typing import Any

from app.broker.queue_limits import queue_policy
from app.stack.postgres import INSTALL, SETTINGS, SUPERUSER
from app.stack.privileges import give, let_pass, let_read, server_account
from app.stack.rabbitmq import AMQP_HEADER, CONNECTION_START, EmbeddedRabbitMQ, password_hash
from app.stack.spec import ProcessSpec, StopStep
from loadtest.cluster.layout import (
    AMQP_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    MANAGEMENT_PORT,
    NUMBERS,
    PATRONI_PORT,
    POSTGRES_PORT,
    USER,
    Layout,
)
from loadtest.cluster.network import SUBNET, address
from models.pools import POOLS

#: Of the cluster's state: who leads, and how long that is believed.
DYNAMIC: dict[str, Any] = {
    "ttl": 20,
    "loop_wait": 2,
    "retry_timeout": 6,
    "maximum_lag_on_failover": 1_048_576,
    # One of two standbys confirms each commit: the loss of one of them stops nobody.
    "synchronous_mode": "quorum",
    "synchronous_mode_strict": True,
    # A PostgreSQL that crashed is not waited for.
    "primary_start_timeout": 0,
    "postgresql": {
        "use_pg_rewind": True,
        "use_slots": True,
        "parameters": {
            **{name: SETTINGS[name] for name in ("jit", "autovacuum_naptime", "fsync")},
            "max_connections": 200,
            "max_wal_senders": 8,
            "max_replication_slots": 8,
            "wal_keep_size": "256MB",
            "hot_standby": "on",
            # Of a peer that does not answer.
            "wal_sender_timeout": "4s",
            "wal_receiver_timeout": "4s",
            "wal_receiver_status_interval": "1s",
            "tcp_user_timeout": "4s",
            "authentication_timeout": "5s",
        },
    },
}
CONFIGURATION = """\
listeners.tcp.1 = {address}:{amqp}
management.tcp.ip = {address}
management.tcp.port = {management}
management.rates_mode = none
load_definitions = {folder}/definitions.json
cluster_formation.peer_discovery_backend = classic_config
{nodes}
cluster_formation.target_cluster_size_hint = 3
cluster_partition_handling = pause_minority
net_ticktime = 8
# A node that was wiped gets its copies of the queues again.
quorum_queue.continuous_membership_reconciliation.enabled = true
quorum_queue.continuous_membership_reconciliation.auto_remove = false
quorum_queue.continuous_membership_reconciliation.interval = 5000
quorum_queue.continuous_membership_reconciliation.trigger_interval = 2000
quorum_queue.continuous_membership_reconciliation.target_group_size = 3
queue_leader_locator = balanced
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 50MB
consumer_timeout = 43200000
log.console.level = warning
"""


class Etcd:
    """Keeps who leads PostgreSQL."""

    def __init__(self, layout: Layout, number: int) -> None:
        self._number = number
        self._folder = layout.machine(number) / "etcd"
        # Of a member without data: it replaces one of a cluster that is there.
        self._state = "existing" if layout.migrated.exists() else "new"

    def processes(self) -> Sequence[ProcessSpec]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        here = f"http://{address(self._number)}"
        members = ",".join(f"m{n}=http://{address(n)}:{ETCD_PEER_PORT}" for n in NUMBERS)
        options = {
            "name": f"m{self._number}",
            "data-dir": str(self._folder),
            "listen-peer-urls": f"{here}:{ETCD_PEER_PORT}",
            "initial-advertise-peer-urls": f"{here}:{ETCD_PEER_PORT}",
            "listen-client-urls": f"{here}:{ETCD_PORT}",
            "advertise-client-urls": f"{here}:{ETCD_PORT}",
            "initial-cluster": members,
            "initial-cluster-state": self._state,
            "heartbeat-interval": "200",
            "election-timeout": "2000",
            "auto-compaction-retention": "1",
            "log-level": "warn",
        }
        words = (f"--{name}={value}" for name, value in options.items())
        # Debian's runs on every architecture, but says so only when asked to.
        env = {"ETCD_UNSUPPORTED_ARCH": os.uname().machine.replace("aarch64", "arm64")}
        if os.uname().machine == "x86_64":
            env = {}
        return [ProcessSpec("etcd", ("/usr/bin/etcd", *words), env=env, cwd=self._folder)]


class Patroni:
    """Starts, promotes and demotes the PostgreSQL of a machine."""

    def __init__(self, layout: Layout, number: int) -> None:
        self._layout = layout
        self._number = number
        self._folder = layout.machine(number) / "postgres"
        self.data = self._folder / "data"

    def processes(self) -> Sequence[ProcessSpec]:
        """Patroni; it keeps PostgreSQL apart, which goes on without it."""
        account = server_account()
        command = self._layout.patroni / "bin/patroni"
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in (self.data, INSTALL / "bin/postgres", command, command.parent / "python"):
            let_pass(path, account)
        let_read(INSTALL, account)
        file = self._folder / "patroni.yml"
        file.touch(mode=0o600)
        file.write_text(json.dumps(self.configuration(), indent=1))  # JSON is YAML too
        self._folder.chmod(0o700)
        give(self._folder, account)
        return [
            ProcessSpec(
                "patroni",
                (str(command), str(file)),
                env={"HOME": str(self._folder)},
                cwd=self._folder,
                account=account,
                stop=(StopStep(signal.SIGTERM, 30.0),),
            )
        ]

    def configuration(self) -> dict[str, Any]:
        here, password = address(self._number), self._layout.password
        logins = {
            "superuser": {"username": SUPERUSER, "password": password},
            "replication": {"username": "replicator", "password": password},
        }
        network = f"{SUBNET}.0/24"
        return {
            "scope": "fairline",
            "name": f"m{self._number}",
            "restapi": {
                "listen": f"{here}:{PATRONI_PORT}",
                "connect_address": f"{here}:{PATRONI_PORT}",
                "authentication": {"username": USER, "password": password},
            },
            "etcd3": {"hosts": [f"{address(n)}:{ETCD_PORT}" for n in NUMBERS]},
            "bootstrap": {
                "dcs": DYNAMIC,
                "initdb": [
                    {"encoding": "UTF8"},
                    {"locale": "C"},
                    {"locale-provider": "builtin"},
                    {"builtin-locale": "C.UTF-8"},
                    "data-checksums",
                ],
            },
            "postgresql": {
                "listen": f"{here}:{POSTGRES_PORT}",
                "connect_address": f"{here}:{POSTGRES_PORT}",
                "data_dir": str(self.data),
                "bin_dir": str(INSTALL / "bin"),
                "pgpass": str(self._folder / "pgpass"),
                "authentication": logins,
                # A copy for a new replica does not wait for the next regular checkpoint.
                "basebackup": {"checkpoint": "fast"},
                # Data that has diverged and cannot be rewound is fetched again.
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
                "parameters": {
                    "unix_socket_directories": "",
                    "shared_buffers": "64MB",
                    "log_min_duration_statement": "2s",
                },
                "pg_hba": [
                    f"host replication replicator {network} scram-sha-256",
                    f"host all all {network} scram-sha-256",
                ],
            },
        }


class RabbitMQNode(EmbeddedRabbitMQ):
    """One of three nodes; its users and cookie are those of the others."""

    def __init__(self, layout: Layout, number: int) -> None:
        super().__init__(layout.machine(number))
        self._layout = layout
        self.address = address(number)
        self.__dict__["ports"] = {
            "amqp": AMQP_PORT,
            "management": MANAGEMENT_PORT,
            "distribution": 25672,
            "epmd": 4369,
        }

    def prepare(self) -> None:
        (self.folder / "conf.d").mkdir(parents=True, exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        cookie.unlink(missing_ok=True)
        cookie.touch(mode=0o600)
        cookie.write_text(self._layout.password)
        cookie.chmod(0o400)
        self._write("definitions.json", json.dumps(self._definitions()))
        nodes = "\n".join(
            f"cluster_formation.classic_config.nodes.{n} = {node_name(n)}" for n in NUMBERS
        )
        text = CONFIGURATION.format(
            **self.ports, folder=self.folder, nodes=nodes, address=self.address
        )
        self._write("rabbitmq.conf", text)
        self._write("rabbitmq-env.conf", "")
        self._write("enabled_plugins", "[rabbitmq_management].\n")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).touch(mode=0o600)
        (self.folder / name).write_text(text)

    def _definitions(self) -> dict[str, Any]:
        hashed = password_hash(self._layout.password)
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        return {
            "users": [{"name": USER, "password_hash": hashed, "tags": ["administrator"]}],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": USER, "vhost": "/", **everything}],
            "policies": [queue_policy(POOLS)],
        }

    def processes(self) -> Sequence[ProcessSpec]:
        """As those of a single node; one that waits for its peers is not reset."""
        mapper, node = super().processes()
        return [mapper, ProcessSpec(node.name, node.argv, node.env, node.cwd, stop=node.stop)]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "ERL_EPMD_ADDRESS": self.address,
            "RABBITMQ_NODENAME": f"rabbit@{self.address}",
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODE_IP_ADDRESS": self.address,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{{self.address.replace('.', ',')}}} "
                "+S 1:1 +SDcpu 1:1 +SDio 2 +A 2 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }

    def wipe(self) -> None:
        """Remove queues, messages and membership."""
        shutil.rmtree(self.folder / "mnesia", ignore_errors=True)

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((self.address, AMQP_PORT), timeout=1.0) as client:
                client.sendall(AMQP_HEADER)
                return client.recv(3) == CONNECTION_START
        except OSError:
            return False


def node_name(number: int) -> str:
    """A node as RabbitMQ names it."""
    return f"rabbit@{address(number)}"


def node_number(name: str) -> int:
    """The machine of a node, or of a member of Patroni's cluster."""
    return int(name[-1])
