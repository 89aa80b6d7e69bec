"""The compose file: its rules, and every command in it run for real, without Docker."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from dotenv import dotenv_values

from app.config import Settings
from app.stack.postgres import DATABASE, EmbeddedPostgres
from app.stack.rabbitmq import CONFIGURATION, NOT_INSTALLED, EmbeddedRabbitMQ, find_server
from app.stack.services import running
from app.stack.spec import PROJECT_ROOT
from models.pools import POOLS
from tests.support.compose import NotSet, argv_of, last_stage, read_compose, seconds_of, start_order
from tests.support.compose_stack import Stack, call, eventually

AUTH = "admin:a-password"
COMPOSE = read_compose({"FLOWER_BASIC_AUTH": AUTH})
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


# The file ----------------------------------------------------------------------------------


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


def test_flower_has_a_password_and_cannot_change_anything() -> None:
    assert SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"] == AUTH
    assert "--read_only=true" in argv_of(SERVICES["flower"]["command"])
    with pytest.raises(NotSet, match="FLOWER_BASIC_AUTH"):
        read_compose({"FLOWER_BASIC_AUTH": ""})


def test_every_setting_can_be_set_and_nothing_else() -> None:
    given = {key for name in OUR_OWN for key in SERVICES[name]["environment"]}
    settings = {f"FAIRLINE_{name.upper()}" for name in Settings.model_fields}
    assert {key for key in given if key.startswith("FAIRLINE_")} == settings | {LOG_LEVEL}


def test_callers_without_a_key_are_refused_unless_a_tenant_is_named() -> None:
    assert not SERVICES["api"]["environment"]["FAIRLINE_ANONYMOUS_TENANT"]
    open_database = read_compose({"FLOWER_BASIC_AUTH": AUTH, "FAIRLINE_ANONYMOUS_TENANT": "demo"})
    api = open_database["services"]["api"]["environment"]
    assert api["FAIRLINE_ANONYMOUS_TENANT"] == "demo"


def test_addresses_and_passwords_agree_between_services() -> None:
    compose = read_compose(
        {"FLOWER_BASIC_AUTH": AUTH, "POSTGRES_PASSWORD": "one", "RABBITMQ_PASSWORD": "two"}
    )
    postgres = compose["services"]["postgres"]["environment"]
    rabbitmq = compose["services"]["rabbitmq"]["environment"]
    for name in OUR_OWN:
        environment = compose["services"][name]["environment"]
        database = urlsplit(environment["FAIRLINE_DATABASE_URL"])
        assert database.scheme == "postgresql+psycopg2"
        assert (database.hostname, database.port) == ("postgres", 5432)
        assert database.username == postgres["POSTGRES_USER"]
        assert database.password == postgres["POSTGRES_PASSWORD"] == "one"
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


# Its services, run for real ----------------------------------------------------------------


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The services, healthy."""
    if find_server() is None:
        if os.environ.get("CI"):
            pytest.fail(NOT_INSTALLED)
        pytest.skip(NOT_INSTALLED)
    folder = tmp_path_factory.mktemp("compose")
    postgres, rabbitmq = EmbeddedPostgres(folder), EmbeddedRabbitMQ(folder)
    # The node takes the very lines that the container would.
    rabbitmq.prepare()
    (rabbitmq.folder / "conf.d/20-fairline.conf").write_text(
        COMPOSE["configs"]["rabbitmq"]["content"]
    )
    with ExitStack() as exits:
        exits.enter_context(running(rabbitmq, folder))
        exits.enter_context(running(postgres, folder))
        postgres.create_database(DATABASE)
        stack = Stack(SERVICES, folder, postgres.url(), rabbitmq.url())
        for service in stack.services.values():
            exits.callback(service.stop)
        stack.start()
        yield stack


def test_a_submitted_application_is_scored(stack: Stack) -> None:
    application_id = stack.submit("Ada")
    eventually(lambda: stack.application(application_id)["status"] == "scored")
    assert 0 <= stack.application(application_id)["score"] <= 100
    assert call(f"{stack.api}/leaderboard?role=general")[0] == 401
    status, leaderboard = call(f"{stack.api}/leaderboard?role=general", key=stack.key)
    assert status == 200
    assert application_id in json.dumps(leaderboard)


def test_the_stack_says_that_it_is_ready(stack: Stack) -> None:
    eventually(lambda: call(f"{stack.api}/readyz")[0] == 200)


@pytest.mark.parametrize("pool", POOLS)
def test_every_pool_runs_jobs(stack: Stack, pool: str) -> None:
    job_id = stack.queue("echo", pool, {"hello": pool})
    eventually(lambda: stack.status(job_id) == "succeeded")


def test_flower_answers_only_with_the_password(stack: Stack) -> None:
    for page in ("/", "/workers", "/tasks", "/api/workers"):
        assert call(f"{stack.flower}{page}")[0] == 401
        assert call(f"{stack.flower}{page}", auth="admin:guessed")[0] == 401
        assert call(f"{stack.flower}{page}", auth=AUTH)[0] == 200


def test_flower_lists_a_worker_for_each_pool(stack: Stack) -> None:
    def listed() -> set[str]:
        workers = call(f"{stack.flower}/api/workers?refresh=1", auth=AUTH)[1]
        return {name.partition("@")[0] for name in workers}

    eventually(lambda: listed() == {f"worker-{pool}" for pool in POOLS})


def test_flower_cannot_shut_a_worker_down(stack: Stack) -> None:
    workers = call(f"{stack.flower}/api/workers?refresh=1", auth=AUTH)[1]
    for name in workers:
        url = f"{stack.flower}/api/worker/shutdown/{name}"
        assert call(url, auth=AUTH, method="POST")[0] == 403


# What follows comes last, as it leaves nothing running.


@dataclass(frozen=True, slots=True)
class Stopped:
    """What was left when everything had been asked to stop in the middle of its work."""

    exits: dict[str, list[int]]
    jobs: dict[str, str]


@pytest.fixture(scope="module")
def stopped(stack: Stack) -> Stopped:
    """All services stopped at once while a job runs in a green and in a prefork worker."""
    long_job = stack.queue("sleep", "long", {"seconds": 4})
    eventually(lambda: stack.status(long_job) == "running")
    application_id = stack.submit("Grace")
    eventually(lambda: stack.status(application_id) == "running")
    for service in stack.services.values():
        service.ask_to_stop()
    exits = {name: service.stop() for name, service in stack.services.items()}
    return Stopped(exits, {job: stack.status(job) for job in (long_job, application_id)})


def test_services_exit_cleanly_and_in_time_when_they_are_stopped(
    stack: Stack, stopped: Stopped
) -> None:
    unclean = {name: codes for name, codes in stopped.exits.items() if any(codes)}
    logs = [stack.services[name].end_of_log() for name in unclean]
    assert not unclean, "\n\n".join(logs)


def test_workers_finish_what_they_run_before_they_exit(stopped: Stopped) -> None:
    assert set(stopped.jobs.values()) == {"succeeded"}


def test_nobody_who_left_is_listed_as_living(stack: Stack, stopped: Stopped) -> None:
    assert stack.read("SELECT name FROM processes") == []


def test_health_checks_fail_once_nothing_runs(stack: Stack, stopped: Stopped) -> None:
    for name, service in stack.services.items():
        assert service.once or not service.is_healthy(), name
