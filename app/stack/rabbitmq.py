"""Embedded RabbitMQ: a private node with its own ports, data, cookie and port mapper.

Uses the machine's ``rabbitmq-server`` but none of its configuration, and not the packaged
``/usr/sbin`` wrapper: it changes the user and writes to the machine's folders. ``RABBITMQ`` names
the folder of another installation's commands. Durable queues and persistent messages survive a kill
of the node. A node that cannot read its data after a crash or a full disk may hang while it starts;
it then starts with an empty folder, because messages are hints and the jobs are rows.

Passwords are generated and kept in files that only their owner may read. The management API is for
Flower: on the loopback interface, by a user who may look and change nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from app.broker.queue_limits import queue_policy
from app.stack.home import Home, make_private
from app.stack.inherited import basic
from app.stack.ports import keep_ports
from app.stack.spec import ProcessSpec, StackError, StopStep
from models.pools import POOLS

#: Where the real script is: what ``PATH`` finds may be the wrapper.
SCRIPTS = "/usr/lib/rabbitmq/bin:/usr/local/lib/rabbitmq/bin"
NOT_INSTALLED = "rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)"
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
#: Who sends and receives messages, and who may look at the queues by the management API. The first
#: is there on every node: under another name it would stay, with the password that all know.
CLIENT, WATCHER = "guest", "flower"
#: The first bytes of Connection.Start, the answer of a server that accepts clients.
CONNECTION_START = b"\x01\x00\x00"

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
management.rates_mode = none
# Flower shows numbers of messages: those of the last ten seconds are new enough.
collect_statistics_interval = 10000
load_definitions = {folder}/definitions.json
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
# Prefork children acknowledge a message when its run begins, gevent workers when its jobs have
# ended. A message that a worker has fetched while all its slots are busy stays unacknowledged
# as long as they are: twelve hours instead of RabbitMQ's 30 minutes.
consumer_timeout = 43200000
log.console.level = warning
# A warning for each connection that ends without a farewell, as those of the stack's own check.
log.connection.level = error
"""


def find_server() -> Path | None:
    """The start script of the installed RabbitMQ, or of that in the folder ``RABBITMQ``."""
    given = os.path.expanduser(os.environ.get("RABBITMQ", ""))
    search = f"{SCRIPTS}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    found = shutil.which("rabbitmq-server", path=given or search)
    if given and not found:
        raise StackError(f"RABBITMQ={given}: there is no rabbitmq-server in this folder")
    return Path(found) if found else None


def definitions(client: str, watcher: str) -> str:
    """Users of the node with their passwords, and the limits of its queues."""
    return json.dumps({**users_of(CLIENT, client, watcher), "policies": [queue_policy(POOLS)]})


def users_of(name: str, client: str, watcher: str, *tags: str) -> dict[str, Any]:
    """The definitions of two users with these passwords: one for messages, and who watches."""
    users = [
        {"name": name, "password_hash": password_hash(client), "tags": tags},
        {"name": WATCHER, "password_hash": password_hash(watcher), "tags": ["monitoring"]},
    ]
    permissions = [
        {"user": name, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        # Nothing has an empty name; without any permission the queues are not shown either.
        {"user": WATCHER, "vhost": "/", "configure": "^$", "write": "^$", "read": "^$"},
    ]
    return {"users": users, "vhosts": [{"name": "/"}], "permissions": permissions}


def password_hash(password: str) -> str:
    """As RabbitMQ keeps it: a salt of four bytes, then the SHA-256 of salt and password."""
    salt = secrets.token_bytes(4)
    digest = hashlib.sha256(salt + password.encode()).digest()
    return base64.b64encode(salt + digest).decode()


class EmbeddedRabbitMQ:
    """A RabbitMQ node below `home`."""

    name = "rabbitmq"
    #: Arguments of a node without peers: it need not tell them ten times per second that it lives.
    alone = "-aten heartbeat_interval 5000"

    def __init__(self, home: Path) -> None:
        self.home = Home(home)
        self.folder = self.home.path / "rabbitmq"

    @cached_property
    def ports(self) -> dict[str, int]:
        """Ports for AMQP, management, Erlang's distribution and the port mapper, once prepared."""
        ports: dict[str, int] = json.loads((self.folder / "ports.json").read_text())
        return ports

    def url(self) -> str:
        return f"amqp://{CLIENT}:{self._password('amqp')}@127.0.0.1:{self.ports['amqp']}//"

    def api_url(self) -> str:
        """The management API, for who may only look."""
        password = self._password("management")
        return f"http://{WATCHER}:{password}@127.0.0.1:{self.ports['management']}/api/"

    def _password(self, port: str) -> str:
        """Of the user of a port; generated when it is first asked for."""
        file = self.folder / f"{port}.password"
        file.touch(mode=0o600)
        if not file.read_text():
            file.write_text(secrets.token_urlsafe(24))
        return file.read_text()

    def prepare(self) -> None:
        """Choose free ports and write the configuration; only while the node is down."""
        if find_server() is None:
            raise StackError(NOT_INSTALLED)
        make_private(self.folder)
        (self.folder / "conf.d").mkdir(exist_ok=True)
        keep_ports(("amqp", "management", "distribution", "epmd"), self.folder / "ports.json")
        self.__dict__.pop("ports", None)
        users = definitions(self._password("amqp"), self._password("management"))
        (self.folder / "definitions.json").write_text(users)
        text = CONFIGURATION.format(**self.ports, folder=self.folder)
        (self.folder / "rabbitmq.conf").write_text(text)
        # Present and empty: keeps the machine's own files out.
        (self.folder / "rabbitmq-env.conf").write_text("")
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")

    def processes(self) -> Sequence[ProcessSpec]:
        """The Erlang port mapper and the node, which would leave a daemonised mapper otherwise."""
        server, env = find_server(), self.environment()
        if server is None:
            raise StackError(NOT_INSTALLED)
        mapper = server.with_name("epmd")
        return [
            ProcessSpec(
                "epmd",
                (str(mapper if mapper.exists() else mapper.name), "-relaxed_command_check"),
                env=env,
                cwd=self.folder,
                stop=(StopStep(signal.SIGTERM, 2.0),),
                inherits=basic,
            ),
            ProcessSpec(
                self.name,
                (str(server),),
                env=env,
                cwd=self.folder,
                stop=(StopStep(signal.SIGTERM, 15.0),),
                is_ready=self.is_ready,
                reset=self.set_data_aside,
                inherits=basic,
            ),
        ]

    def keep_data_of(self, queue_type: str) -> None:
        """Set data aside that another queue type or another RabbitMQ has written.

        A queue cannot be declared with another type, nor can any version read the data of any.
        """
        note, server = self.folder / "written-by", find_server()
        written = note.read_text() if note.exists() else f"classic {server}"
        if written != (wanted := f"{queue_type} {server}"):
            self.set_data_aside()
        note.write_text(wanted)

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
            # When its queues are closed, RabbitMQ waits five seconds for statistics to end.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} "
                "+sbwt none +sbwtdcpu none +sbwtdio none "
                f"-shutdown_time 2000 {self.alone}"
            ),
        }

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.ports["amqp"]), timeout=1.0) as client:
                client.sendall(AMQP_HEADER)
                return client.recv(3) == CONNECTION_START
        except OSError:
            return False
