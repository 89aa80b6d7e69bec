"""Settings and secrets from files in ``/run/secrets``; here the folder is another."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest

from app import flower_access
from app.config import Settings
from app.flower_access import read_secret_options
from models import alive, secret_files
from models.secret_files import read_secret, secrets_folder

URL = "postgresql+psycopg2://fairline:from-a-file@127.0.0.1:1/fairline"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(secret_files, "FOLDER", tmp_path)
    for name in ("FAIRLINE_DATABASE_URL", "FLOWER_BASIC_AUTH", "FLOWER_BROKER_API"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_settings_are_read_from_files_and_the_environment_comes_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "fairline_database_url").write_text(f"{URL}\n")
    (folder / "fairline_encryption_keys").write_text("")
    (folder / "grafana_password").write_text("of somebody else")
    assert secrets_folder() == folder

    def read() -> Settings:
        return Settings(_env_file=None, _secrets_dir=secrets_folder())

    assert read().database_url == read_secret("FAIRLINE_DATABASE_URL") == URL
    monkeypatch.setenv("FAIRLINE_DATABASE_URL", URL.replace("from-a-file", "other"))
    assert read().database_url == read_secret("FAIRLINE_DATABASE_URL")
    assert "other" in read().database_url


def test_a_folder_that_is_not_there_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(secret_files, "FOLDER", folder / "missing")
    assert secrets_folder() is None
    assert read_secret("FAIRLINE_DATABASE_URL") == ""
    Settings(_env_file=None, _secrets_dir=secrets_folder())
    assert not recwarn


def test_health_checks_read_the_same_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "fairline_database_url").write_text(f"{URL}\n")
    asked: dict[str, Any] = {}

    def connect(**arguments: Any) -> Any:
        asked.update(arguments)
        raise psycopg2.OperationalError("nobody is there")

    monkeypatch.setattr(psycopg2, "connect", connect)
    with pytest.raises(psycopg2.OperationalError):
        alive.read_reports("worker", None)
    assert (asked["user"], asked["password"]) == ("fairline", "from-a-file")


def test_flower_reads_its_passwords_unless_they_are_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SimpleNamespace(basic_auth=None, broker_api=None)
    monkeypatch.setattr(flower_access, "options", options)
    read_secret_options()
    assert not options.basic_auth and not options.broker_api
    (folder / "flower_basic_auth").write_text("a:b,c:d\n")
    (folder / "flower_broker_api").write_text("http://flower:x@rabbitmq:15672/api/\n")
    read_secret_options()
    assert options.basic_auth == ["a:b", "c:d"]
    assert options.broker_api == "http://flower:x@rabbitmq:15672/api/"
    options.basic_auth = ["me:mine"]
    read_secret_options()
    assert options.basic_auth == ["me:mine"]
