"""The compose file: its rules, and every command in it run for real, without Docker."""

from __future__ import annotations

import base64
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
from dotenv import dotenv_values

from app.config import Settings
from app.stack.ports import keep_ports
from app.stack.postgres import DATABASE, EmbeddedPostgres
from app.stack.programs import POOLS as POOL_KINDS
from app.stack.rabbitmq import CONFIGURATION, NOT_INSTALLED, EmbeddedRabbitMQ, find_server
from app.stack.services import running
from app.stack.spec import PROJECT_ROOT
from models.ids import new_id
from models.pools import POOLS
from tests.compose import (
    LocalService,
    NotSet,
    argv_of,
    copy_image,
    last_stage,
    read_compose,
    seconds_of,
    start_order,
)

AUTH = "admin:a-password"
COMPOSE = read_compose({"FLOWER_BASIC_AUTH": AUTH})
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OUR_OWN = [name for name, service in SERVICES.items() if "build" in service]
WORKERS = [name for name in OUR_OWN if name.startswith("worker")]
#: Variables of the stack behind ``make up`` and of logging, which are no settings.
NO_SETTINGS = {
    "FAIRLINE_HOME",
    "FAIRLINE_LOG_LEVEL",
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
    assert served == POOL_KINDS
    assert {pool: slots for pool, (_, slots) in served.items()} == {
        pool.name: pool.slots for pool in POOLS.values()
    }


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
    assert {key for key in given if key.startswith("FAIRLINE_")} == settings


def test_callers_without_a_key_can_be_refused() -> None:
    refusing = read_compose({"FLOWER_BASIC_AUTH": AUTH, "FAIRLINE_ANONYMOUS_TENANT": ""})
    api = refusing["services"]["api"]["environment"]
    assert api["FAIRLINE_ANONYMOUS_TENANT"] == ""
    assert SERVICES["api"]["environment"]["FAIRLINE_ANONYMOUS_TENANT"] == "demo"


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


def test_long_jobs_may_hold_their_message_as_long_as_on_the_embedded_broker() -> None:
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


class Stack:
    """All application services of the file, on private local services."""

    def __init__(self, folder: Path, database_url: str, broker_url: str) -> None:
        keep_ports(("api", "flower"), folder / "ports.json")
        ports = json.loads((folder / "ports.json").read_text())
        self.api = f"http://127.0.0.1:{ports['api']}"
        self.flower = f"http://127.0.0.1:{ports['flower']}"
        self.database_url = database_url.replace("+psycopg2", "")
        local = {
            "FAIRLINE_DATABASE_URL": database_url,
            "FAIRLINE_BROKER_URL": broker_url,
            "FAIRLINE_HOST": "127.0.0.1",
            "FAIRLINE_PORT": str(ports["api"]),
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(ports["flower"]),
        }
        image = copy_image(folder / "image")
        self.services = {
            name: LocalService(name, SERVICES[name], local, image, folder)
            for name in start_order(SERVICES)
            if name in OUR_OWN
        }

    def start(self) -> None:
        """Start what nothing holds back any more, until everything is up."""
        waiting, satisfied = dict(self.services), {"postgres", "rabbitmq"}
        starting: dict[str, LocalService] = {}
        deadline = time.monotonic() + 60
        while waiting or starting:
            for name in [name for name in waiting if satisfied >= set(needs(name))]:
                starting[name] = waiting.pop(name)
                starting[name].start()
            for name in [name for name, service in starting.items() if service.is_satisfied()]:
                satisfied.add(name)
                del starting[name]
            assert time.monotonic() < deadline, "\n\n".join(
                f"{service.name} is not healthy:\n{service.end_of_log()}"
                for service in starting.values()
            )

    def submit(self, candidate: str) -> str:
        """Send an application; its id."""
        body = {"candidate": candidate, "payload": {"text": "I would like to."}}
        status, answer = call(f"{self.api}/applications", body)
        assert status == 202, answer
        return str(answer["id"])

    def application(self, application_id: str) -> dict[str, Any]:
        """What the API says about it."""
        status, answer = call(f"{self.api}/applications/{application_id}")
        assert status == 200, answer
        return answer

    def queue(self, job_type: str, pool: str, payload: object) -> str:
        """Put a job in a pool's line, as the API will once it takes every type."""
        job_id = new_id()
        self.read(
            "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
            " SELECT %s, id, %s, %s, %s, 'queued' FROM tenants WHERE name = 'demo' RETURNING id",
            (job_id, job_type, pool, json.dumps(payload)),
        )
        return job_id

    def status(self, job_id: str) -> str:
        """The status in a job's row."""
        return str(self.read("SELECT status FROM jobs WHERE id = %s", (job_id,))[0][0])

    def read(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows from the database."""
        connection = psycopg2.connect(self.database_url)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return cursor.fetchall()
        finally:
            connection.close()


def needs(name: str) -> list[str]:
    """The services that one waits for."""
    return list(SERVICES[name].get("depends_on", {}))


def call(
    url: str, body: object = None, auth: str = "", method: str | None = None
) -> tuple[int, Any]:
    """Status and document of an HTTP answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    request.add_header("Content-Type", "application/json")
    if auth:
        token = base64.b64encode(auth.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content.decode()


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return as soon as `check` holds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


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
        stack = Stack(folder, postgres.url(), rabbitmq.url())
        for service in stack.services.values():
            exits.callback(service.stop)
        stack.start()
        yield stack


def test_a_submitted_application_is_scored(stack: Stack) -> None:
    application_id = stack.submit("Ada")
    eventually(lambda: stack.application(application_id)["status"] == "scored")
    assert 0 <= stack.application(application_id)["score"] <= 100
    status, leaderboard = call(f"{stack.api}/leaderboard?role=general")
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

    eventually(lambda: listed() == set(POOLS))


def test_flower_cannot_shut_a_worker_down(stack: Stack) -> None:
    workers = call(f"{stack.flower}/api/workers?refresh=1", auth=AUTH)[1]
    for name in workers:
        url = f"{stack.flower}/api/worker/shutdown/{name}"
        assert call(url, auth=AUTH, method="POST")[0] == 403


# Last, as it leaves nothing running.
def test_services_finish_what_they_run_and_exit_cleanly(stack: Stack) -> None:
    application_id = stack.submit("Grace")
    long_job = stack.queue("sleep", "long", {"seconds": 2})
    eventually(lambda: stack.status(application_id) == stack.status(long_job) == "running")
    for service in stack.services.values():
        service.ask_to_stop()
    exits = {name: service.stop() for name, service in stack.services.items()}
    unclean = {name: codes for name, codes in exits.items() if any(codes)}
    assert not unclean, "\n\n".join(stack.services[name].end_of_log() for name in unclean)
    assert stack.status(application_id) == stack.status(long_job) == "succeeded"
    assert stack.read("SELECT name FROM processes") == []
