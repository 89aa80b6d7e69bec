"""Rules of docker-compose.yml; `make compose-test` runs it under a Docker engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from dotenv import dotenv_values

from app.config import Settings
from app.stack.rabbitmq import CONFIGURATION
from app.stack.spec import PROJECT_ROOT
from models.pools import POOLS
from tests.support.compose import argv_of, last_stage, read_compose, seconds_of, start_order

COMPOSE = read_compose({})
#: Without those who only watch: tests/unit/test_dashboards.py has them.
SERVICES: dict[str, dict[str, Any]] = {
    name: service for name, service in COMPOSE["services"].items() if "profiles" not in service
}
OUR_OWN = [name for name, service in SERVICES.items() if "build" in service]
WORKERS = [name for name in OUR_OWN if name.startswith("worker")]
LOG_LEVEL = "FAIRLINE_LOG_LEVEL"
#: Variables of the stack behind ``make up`` and of logging, which are no settings.
NO_SETTINGS = {
    "FAIRLINE_HOME",
    LOG_LEVEL,
    "FAIRLINE_DRAIN_SECONDS",
    "FAIRLINE_READY_SECONDS",
}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_watched_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    if service["restart"] == "no":
        assert "healthcheck" not in service
        return
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"
    assert seconds_of(service["stop_grace_period"]) >= 20


def test_services_wait_for_what_they_need_and_for_nothing_that_cannot_happen() -> None:
    start_order(SERVICES)  # raises on a cycle
    for name, service in SERVICES.items():
        for other, dependency in service.get("depends_on", {}).items():
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for the health of {other}"
            else:
                assert dependency["condition"] == "service_completed_successfully"
                assert SERVICES[other]["restart"] == "no", f"{name} waits for the end of {other}"
    assert "postgres" in SERVICES["migrate"]["depends_on"]
    for name in {*OUR_OWN} - {"migrate", "flower"}:
        assert "migrate" in SERVICES[name]["depends_on"]
    for name in (*WORKERS, "flower"):
        assert "rabbitmq" in SERVICES[name]["depends_on"]


def test_every_worker_service_can_be_scaled() -> None:
    for name, service in SERVICES.items():
        assert "container_name" not in service, name
    for name in WORKERS:
        assert "ports" not in SERVICES[name]
        assert "hostname" not in SERVICES[name]
        command = argv_of(SERVICES[name]["command"])
        assert command[command.index("-n") + 1].endswith("@%h"), "two nodes of one name"


def test_there_is_a_worker_service_for_each_pool_as_make_up_starts_it() -> None:
    served = {}
    for name in WORKERS:
        command = argv_of(SERVICES[name]["command"])
        option = {flag: command[command.index(flag) + 1] for flag in ("-P", "-c", "-Q")}
        served[option["-Q"]] = (option["-P"], int(option["-c"]))
        assert SERVICES[name]["healthcheck"]["test"][-1] == option["-Q"]
    assert served == {pool.name: (pool.concurrency, pool.slots) for pool in POOLS.values()}


def test_images_are_pinned_to_a_major_version() -> None:
    for name, service in SERVICES.items():
        if name not in OUR_OWN:
            assert re.fullmatch(r"\w+:\d+(-\w+)?", service["image"]), service["image"]
    assert SERVICES["postgres"]["image"] == "postgres:18"
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    assert SERVICES["postgres"]["stop_signal"] == "SIGINT"
    assert last_stage()[0] == ["FROM", "python:3.11-slim"]


def test_the_image_does_not_run_as_root() -> None:
    users = [words[1] for words in last_stage() if words[0] == "USER"]
    assert users and re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_the_build_sees_what_the_image_copies_and_nothing_else() -> None:
    ignored = (PROJECT_ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in ignored
    copied = {
        word
        for instruction, *words in last_stage()
        if instruction == "COPY" and not words[0].startswith("--from")
        for word in words[:-1]
    }
    seen = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert seen == copied | {"requirements.txt"}


def test_nothing_is_published_beyond_the_machine() -> None:
    published = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert {name for name, ports in published.items() if ports} == {"api", "flower"}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_only_our_own_processes_reach_the_services() -> None:
    assert COMPOSE["networks"] == {"services": {"internal": True}}
    for name in ("postgres", "rabbitmq"):
        assert SERVICES[name]["networks"] == ["services"]
    for name in OUR_OWN:
        assert set(SERVICES[name]["networks"]) == {"default", "services"}
    for name in COMPOSE["services"].keys() - SERVICES.keys():  # those who only watch
        assert "networks" not in COMPOSE["services"][name]


def test_our_own_processes_write_nothing_but_blobs_and_temporary_files() -> None:
    for name in OUR_OWN:
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["tmpfs"] == ["/tmp"]
        assert SERVICES[name]["volumes"] == ["blobs:/var/lib/fairline/blobs"]


def test_every_service_has_a_limit_of_memory_and_processes() -> None:
    gigabytes = {name: int(SERVICES[name]["mem_limit"].removesuffix("g")) for name in SERVICES}
    assert all(service["pids_limit"] >= 512 for service in SERVICES.values())
    run_gigabytes = (POOLS["long"].memory_mb or 0) / 1024
    assert gigabytes["worker-long"] > POOLS["long"].slots * run_gigabytes
    # Its connections, and as much again for PostgreSQL's own processes.
    assert SERVICES["postgres"]["pids_limit"] >= 2 * 200


def test_flower_has_a_password_and_cannot_change_anything() -> None:
    assert SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"] == "fairline:fairline"
    assert "--read_only=true" in argv_of(SERVICES["flower"]["command"])
    chosen = read_compose({"FLOWER_BASIC_AUTH": "me:secret"})["services"]["flower"]
    assert chosen["environment"]["FLOWER_BASIC_AUTH"] == "me:secret"


def test_every_setting_can_be_set_and_nothing_else() -> None:
    given = {key for name in OUR_OWN for key in SERVICES[name]["environment"]}
    settings = {f"FAIRLINE_{name.upper()}" for name in Settings.model_fields}
    assert {key for key in given if key.startswith("FAIRLINE_")} == settings | {LOG_LEVEL}


def test_the_scheduler_has_the_limits_of_ticks_and_its_relief_the_pace_of_promotion() -> None:
    scheduler, api = (SERVICES[name]["environment"] for name in ("scheduler", "api"))
    shared = ("SERVED_POOLS", "SUBMIT_PER_SECOND", "SUBMIT_BURST", "QUEUE_DEPTH")
    for name in (*shared, "PROMOTE_PER_SECOND"):
        assert {f"FAIRLINE_{name}"} <= scheduler.keys() & api.keys()


def test_callers_without_a_key_are_refused_unless_a_tenant_is_named() -> None:
    assert not SERVICES["api"]["environment"]["FAIRLINE_ANONYMOUS_TENANT"]
    open_database = read_compose({"FAIRLINE_ANONYMOUS_TENANT": "demo"})
    api = open_database["services"]["api"]["environment"]
    assert api["FAIRLINE_ANONYMOUS_TENANT"] == "demo"


def test_addresses_and_passwords_agree_between_services() -> None:
    given = {"POSTGRES_PASSWORD": "one", "RABBITMQ_PASSWORD": "two", "POSTGRES_APP_PASSWORD": "own"}
    compose = read_compose(given)
    postgres = compose["services"]["postgres"]["environment"]
    rabbitmq = compose["services"]["rabbitmq"]["environment"]
    for name in OUR_OWN:
        environment = compose["services"][name]["environment"]
        database = urlsplit(environment["FAIRLINE_DATABASE_URL"])
        assert database.scheme == "postgresql+psycopg2"
        assert (database.hostname, database.port) == ("postgres", 5432)
        assert (database.username, database.password) == ("fairline_app", "own")
        if name == "migrate":
            owner = urlsplit(environment["FAIRLINE_OWNER_DATABASE_URL"])
            assert owner.username == postgres["POSTGRES_USER"] != database.username
            assert owner.password == postgres["POSTGRES_PASSWORD"] == "one"
        else:
            assert "FAIRLINE_OWNER_DATABASE_URL" not in environment
        assert database.path == f"/{postgres['POSTGRES_DB']}"
        broker = urlsplit(environment["FAIRLINE_BROKER_URL"])
        assert (broker.hostname, broker.port) == ("rabbitmq", 5672)
        assert broker.username == rabbitmq["RABBITMQ_DEFAULT_USER"]
        assert broker.password == rabbitmq["RABBITMQ_DEFAULT_PASS"] == "two"
        assert environment["FAIRLINE_QUEUE_TYPE"] == "quorum"


def test_an_unacknowledged_message_may_wait_as_long_as_on_the_embedded_broker() -> None:
    content = COMPOSE["configs"]["rabbitmq"]["content"]
    (line,) = re.findall(r"^consumer_timeout = \d+$", content, re.M)
    assert line in CONFIGURATION


def test_the_example_lists_every_setting_with_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (PROJECT_ROOT / ".env.example").read_text()
    assert not re.search(r"^[A-Z]", text, re.M), "a copied example must change nothing"
    uncommented = tmp_path / "env"
    uncommented.write_text(re.sub(r"^#(?=[A-Z_]+=)", "", text, flags=re.M))
    listed = {key for key in dotenv_values(uncommented) if key.startswith("FAIRLINE_")}
    assert listed - NO_SETTINGS == {f"FAIRLINE_{name.upper()}" for name in Settings.model_fields}
    for key in listed:
        monkeypatch.delenv(key, raising=False)
    example = Settings(_env_file=uncommented)
    assert example.model_fields_set == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert getattr(example, name) == field.get_default(call_default_factory=True), name
