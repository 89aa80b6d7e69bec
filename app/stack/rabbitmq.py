"""Embedded RabbitMQ: a private node with its own ports, data, cookie and port mapper.

Uses the machine's ``rabbitmq-server`` but none of its configuration, and not the packaged
``/usr/sbin`` wrapper: it changes the user and writes to the machine's folders. Durable queues
and persistent messages survive a kill of the node. A node that cannot read its data after a
crash or a full disk may hang while it starts; it then starts with an empty folder, because
messages are hints and the jobs are rows.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from app.stack.home import Home
from app.stack.ports import keep_ports
from app.stack.spec import ProcessSpec, StackError, StopStep

#: Where the real script is: what ``PATH`` finds may be the wrapper.
SCRIPTS = "/usr/lib/rabbitmq/bin:/usr/local/lib/rabbitmq/bin"
NOT_INSTALLED = "rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)"
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
#: The first bytes of Connection.Start, the answer of a server that accepts clients.
CONNECTION_START = b"\x01\x00\x00"

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
# Prefork children acknowledge a message when its run begins, gevent workers when its jobs have
# ended. A message that a worker has fetched while all its slots are busy stays unacknowledged
# as long as they are: twelve hours instead of RabbitMQ's 30 minutes.
consumer_timeout = 43200000
log.console.level = warning
"""


def find_server() -> Path | None:
    """The start script of the installed RabbitMQ, if there is one."""
    search = f"{SCRIPTS}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    found = shutil.which("rabbitmq-server", path=search)
    return Path(found) if found else None


class EmbeddedRabbitMQ:
    """A RabbitMQ node below `home`."""

    name = "rabbitmq"

    def __init__(self, home: Path) -> None:
        self.home = Home(home)
        self.folder = self.home.path / "rabbitmq"

    @cached_property
    def ports(self) -> dict[str, int]:
        """Ports for AMQP, for the Erlang distribution and for the port mapper, once prepared."""
        ports: dict[str, int] = json.loads((self.folder / "ports.json").read_text())
        return ports

    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.ports['amqp']}//"

    def prepare(self) -> None:
        """Choose free ports and write the configuration; only while the node is down."""
        if find_server() is None:
            raise StackError(NOT_INSTALLED)
        (self.folder / "conf.d").mkdir(parents=True, exist_ok=True)
        keep_ports(("amqp", "distribution", "epmd"), self.folder / "ports.json")
        self.__dict__.pop("ports", None)
        (self.folder / "rabbitmq.conf").write_text(CONFIGURATION.format(**self.ports))
        # Present and empty: keeps the machine's own files out.
        (self.folder / "rabbitmq-env.conf").write_text("")
        (self.folder / "enabled_plugins").write_text("[].\n")

    def processes(self) -> Sequence[ProcessSpec]:
        """The Erlang port mapper and the node, which would leave a daemonised mapper otherwise."""
        server, env = find_server(), self.environment()
        if server is None:
            raise StackError(NOT_INSTALLED)
        return [
            ProcessSpec(
                "epmd",
                ("epmd", "-relaxed_command_check"),
                env=env,
                cwd=self.folder,
                stop=(StopStep(signal.SIGTERM, 2.0),),
            ),
            ProcessSpec(
                self.name,
                (str(server),),
                env=env,
                cwd=self.folder,
                stop=(StopStep(signal.SIGTERM, 15.0),),
                is_ready=self.is_ready,
                reset=self.set_data_aside,
            ),
        ]

    def set_data_aside(self) -> None:
        """Move queues and messages out of the way, in place of those moved before."""
        data, aside = self.folder / "mnesia", self.folder / "mnesia.unreadable"
        shutil.rmtree(aside, ignore_errors=True)
        if data.exists():
            data.rename(aside)

    def environment(self) -> dict[str, str]:
        """What the node and its tools need to know."""
        folder = self.folder
        return {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self.ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Also reaches the helper that RabbitMQ starts only to bring up another mapper, which
            # would outlive the stack.
            "ERL_ZFLAGS": "-start_epmd false",
            # Makes the script replace itself by the node instead of waiting for it, so the
            # supervised process is the node.
            "detached": "true",
            "RABBITMQ_NODENAME": f"fairline-{self.home.stack_id()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.ports["amqp"]),
            "RABBITMQ_DIST_PORT": str(self.ports["distribution"]),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(folder / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} "
                "+sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.ports["amqp"]), timeout=1.0) as client:
                client.sendall(AMQP_HEADER)
                return client.recv(3) == CONNECTION_START
        except OSError:
            return False
