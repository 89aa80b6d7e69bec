"""What the engines' own commands must know to be typed on a machine: where they are, whom they ask.

``psql``, ``patronictl``, ``rabbitmqctl`` and ``etcdctl`` then ask the engine of that machine, as
they do on a machine where only this one is installed.
"""

from __future__ import annotations

import os

from app.stack.environment import COMMANDS
from app.stack.postgres import DATABASE, INSTALL, SUPERUSER
from loadtest.cluster.engines import RabbitMQNode
from loadtest.cluster.layout import ETCD_PORT, POSTGRES_PORT, Layout
from loadtest.cluster.network import address

#: Of the server; its commands do with them what is not wanted.
SERVER_ONLY = ("detached", "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS")


def variables(layout: Layout, number: int) -> dict[str, str]:
    """Environment of a command that an operator types on that machine."""
    rabbitmq = RabbitMQNode(layout, number).environment()
    folders = (COMMANDS, layout.patroni / "bin", layout.rabbitmq, INSTALL / "bin")
    given = os.environ.get("PATH", os.defpath)
    return {
        **{name: value for name, value in rabbitmq.items() if name not in SERVER_ONLY},
        "PATH": ":".join((*map(str, folders), given, "/usr/sbin", "/sbin")),
        "PATRONICTL_CONFIG_FILE": str(layout.machine(number) / "postgres/patroni.yml"),
        "ETCDCTL_API": "3",
        "ETCDCTL_ENDPOINTS": f"http://{address(number)}:{ETCD_PORT}",
        "PGDATA": str(layout.machine(number) / "postgres/data"),
        "PGHOST": address(number),
        "PGPORT": str(POSTGRES_PORT),
        "PGUSER": SUPERUSER,
        "PGPASSWORD": layout.password,
        "PGDATABASE": DATABASE,
    }
