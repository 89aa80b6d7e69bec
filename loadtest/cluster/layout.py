"""What all processes of a cluster must know: folders, addresses, passwords, settings.

Written once, when the cluster is made, and readable by its owner alone.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from app.stack.postgres import DATABASE
from app.stack.spec import StackError
from loadtest.cluster.network import address

NUMBERS = (1, 2, 3)
API_PORT, POSTGRES_PORT, PATRONI_PORT, ETCD_PORT, ETCD_PEER_PORT = 8000, 5432, 8008, 2379, 2380
AMQP_PORT, MANAGEMENT_PORT = 5672, 15672
#: Of PostgreSQL's role, RabbitMQ's and Patroni's user.
USER = "fairline"


def new_password() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster, as its folder describes it."""

    folder: Path
    #: Where this machine reaches it.
    port: int
    #: Where Patroni is installed, and the folder of RabbitMQ's commands.
    patroni: Path
    rabbitmq: Path
    #: Settings of Fairline, by environment variable.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Of everything that asks for one, and Erlang's cookie.
    password: str = field(default_factory=new_password)

    @property
    def running(self) -> Path:
        """Exists from the start of the cluster until it was stopped."""
        return self.folder / "running"

    @property
    def migrated(self) -> Path:
        """Exists when Fairline's processes may start."""
        return self.folder / "migrated"

    @property
    def operator_key(self) -> Path:
        return self.folder / "operator.key"

    def machine(self, number: int) -> Path:
        """The folder of a machine."""
        return self.folder / f"machine-{number}"

    def database_url(self) -> str:
        servers = ",".join(f"{address(number)}:{POSTGRES_PORT}" for number in NUMBERS)
        return f"postgresql+psycopg2://{USER}:{self.password}@{servers}/{DATABASE}"

    def broker_url(self) -> str:
        nodes = ",".join(f"{address(number)}:{AMQP_PORT}" for number in NUMBERS)
        return f"amqp://{USER}:{self.password}@{nodes}//"

    def variables(self, number: int) -> dict[str, str]:
        """Settings of the Fairline processes of a machine, or of a command beside it."""
        return {
            "FAIRLINE_ANONYMOUS_TENANT": "demo",
            # HAProxy is another machine; the network ends on this one.
            "FAIRLINE_ANONYMOUS_FROM": "anywhere",
            "FAIRLINE_DEMO_TYPES": "true",
            "FAIRLINE_LOG_LEVEL": "warning",
            **self.settings,
            "FAIRLINE_HOME": str(self.machine(number)),
            "FAIRLINE_DATABASE_URL": self.database_url(),
            "FAIRLINE_BROKER_URL": self.broker_url(),
            "FAIRLINE_QUEUE_TYPE": "quorum",
            "FAIRLINE_BLOB_URL": str(self.folder / "blobs"),
            "FAIRLINE_HOST": address(number),
            "FAIRLINE_PORT": str(API_PORT),
            "FAIRLINE_API_WORKERS": "2",
        }

    def save(self) -> None:
        file = self.folder / "layout.json"
        values = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}
        with open(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as output:
            json.dump({**values, "settings": dict(self.settings)}, output, indent=1)

    @classmethod
    def load(cls, folder: Path) -> Layout:
        """The layout of the cluster in that folder."""
        try:
            values = json.loads((folder / "layout.json").read_text())
            for name in ("folder", "patroni", "rabbitmq"):
                values[name] = Path(values[name])
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError):
            raise StackError(f"there is no cluster in {folder}; `make cluster` makes one") from None
