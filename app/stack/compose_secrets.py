"""Passwords of docker-compose.yml: random ones, made once and kept in the volume of secrets.

``python -m app.stack.compose_secrets`` is the service ``secrets``, which ends before the others
start. A password that is set in the environment replaces the one that is kept. Every file can be
read by the user of the service that needs it; each is replaced as a whole. Those of PostgreSQL and
RabbitMQ have the same number in their images, so each can read the other's file. If this is
killed, the next start goes on with the passwords that were written.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from app.stack.rabbitmq import WATCHER, users_of
from models.secret_files import FOLDER

USER = "fairline"
#: The login of the processes, which ``migrate`` makes; ``USER`` owns the tables.
APPLICATION = "fairline_app"
#: For ``migrate`` alone, which has it in the place of the other.
OWNER_FOLDER = Path("/run/owner-secrets")
#: Ids of the users in the images, which are documented there; the Dockerfile has our own.
ROOT, OURS, POSTGRES, RABBITMQ, GRAFANA = 0, 10001, 999, 999, 472


class SecretFiles:
    """The files of two folders; of the variables in ``given``, those that are not empty count."""

    def __init__(self, folder: Path, of_owner: Path, given: Mapping[str, str]) -> None:
        self._folder, self._of_owner, self._given = folder, of_owner, given

    def write_all(self) -> None:
        """Bring every file up to date."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # two at once would make two passwords
            self._write_services()
            os.fsync(folder)
        finally:
            os.close(folder)

    def _write_services(self) -> None:
        owner = database_url(USER, self._keep("POSTGRES_PASSWORD", POSTGRES))
        application = database_url(APPLICATION, self._keep("POSTGRES_APP_PASSWORD", ROOT))
        messages = self._keep("RABBITMQ_PASSWORD", ROOT)
        watching = self._keep("RABBITMQ_FLOWER_PASSWORD", ROOT)
        self._keep("FLOWER_BASIC_AUTH", OURS, f"{USER}:")
        self._keep("GRAFANA_PASSWORD", GRAFANA)
        users = json.dumps(users_of(USER, messages, watching, "administrator"))
        self._write(self._folder / "rabbitmq_definitions.json", users, RABBITMQ)
        broker = f"amqp://{USER}:{quote(messages, safe='')}@rabbitmq:5672//"
        for file, url in (
            (self._folder / "fairline_database_url", application),
            (self._folder / "fairline_broker_url", broker),
            (
                self._folder / "flower_broker_api",
                f"http://{WATCHER}:{watching}@rabbitmq:15672/api/",
            ),
            (self._of_owner / "fairline_database_url", application),
            (self._of_owner / "fairline_owner_database_url", owner),
        ):
            self._write(file, url, OURS)

    def _keep(self, variable: str, owner: int, prefix: str = "") -> str:
        """The password that is given, else the one that is kept, else a new one."""
        file = self._folder / variable.lower()
        kept = file.read_text().strip() if file.exists() else ""
        value = self._given.get(variable) or kept or prefix + secrets.token_urlsafe(24)
        self._write(file, value, owner)
        return value

    def _write(self, target: Path, text: str, owner: int) -> None:
        new = target.with_name(f".{target.name}.new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            os.fchown(file.fileno(), owner, owner)
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)


def database_url(login: str, password: str) -> str:
    """Where PostgreSQL is, for a login."""
    return f"postgresql+psycopg2://{login}:{quote(password, safe='')}@postgres:5432/{USER}"


if __name__ == "__main__":
    SecretFiles(FOLDER, OWNER_FOLDER, os.environ).write_all()
