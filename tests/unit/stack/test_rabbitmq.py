"""The embedded RabbitMQ before it starts: which one it is, and whose data it may read."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from app.stack.rabbitmq import EmbeddedRabbitMQ, definitions, find_server
from app.stack.spec import StackError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a RabbitMQ's commands, which ``RABBITMQ`` names."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "rabbitmq-server").touch(mode=0o755)
    monkeypatch.setenv("RABBITMQ", str(folder))
    return folder


@pytest.fixture
def node(installed: Path, tmp_path: Path) -> EmbeddedRabbitMQ:
    """A node with data, written for classic queues."""
    service = EmbeddedRabbitMQ(tmp_path / "home")
    service.prepare()
    service.keep_data_of("classic")
    (service.folder / "mnesia").mkdir()
    return service


def has_data(node: EmbeddedRabbitMQ) -> bool:
    return (node.folder / "mnesia").exists()


def test_another_installation_can_be_named(installed: Path) -> None:
    assert find_server() == installed / "rabbitmq-server"


def test_folder_without_a_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ", str(tmp_path))
    with pytest.raises(StackError, match=f"RABBITMQ={tmp_path}: there is no rabbitmq-server"):
        find_server()


def test_data_stays_while_type_and_rabbitmq_do(node: EmbeddedRabbitMQ) -> None:
    node.keep_data_of("classic")
    assert has_data(node)


def test_data_of_an_earlier_version_is_that_of_classic_queues(node: EmbeddedRabbitMQ) -> None:
    (node.folder / "written-by").unlink()
    node.keep_data_of("classic")
    assert has_data(node)


def test_data_of_another_queue_type_is_set_aside(node: EmbeddedRabbitMQ) -> None:
    node.keep_data_of("quorum")
    assert not has_data(node)


def test_data_of_another_rabbitmq_is_set_aside(node: EmbeddedRabbitMQ, installed: Path) -> None:
    installed.rename(installed.with_name("older"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RABBITMQ", str(installed.with_name("older")))
        node.keep_data_of("classic")
    assert not has_data(node)


def test_passwords_are_generated_kept_and_nowhere_in_the_definitions(
    node: EmbeddedRabbitMQ,
) -> None:
    addresses = {"management": node.api_url(), "amqp": node.url()}
    for port, address in addresses.items():
        file = node.folder / f"{port}.password"
        password = file.read_text()
        assert f":{password}@" in address and len(password) >= 24
        assert file.stat().st_mode & 0o077 == 0
        node.prepare()
        assert file.read_text() == password
        assert password not in (node.folder / "definitions.json").read_text()
    assert addresses == {"management": node.api_url(), "amqp": node.url()}


def test_passwords_are_hashed_as_rabbitmq_does() -> None:
    users = {user["name"]: user for user in json.loads(definitions("known", "secret"))["users"]}
    for name, password in (("guest", b"known"), ("flower", b"secret")):
        kept = base64.b64decode(users[name]["password_hash"])
        assert kept[4:] == hashlib.sha256(kept[:4] + password).digest()
    assert (users["flower"]["tags"], users["guest"]["tags"]) == (["monitoring"], [])
