"""Rules of docker-compose.yml; `make compose-test` runs it under a Docker engine."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from dotenv import dotenv_values

from app.config import Settings
from app.stack import compose_secrets
from app.stack.compose_secrets import OWNER_FOLDER
from app.stack.rabbitmq import CONFIGURATION
from app.stack.spec import PROJECT_ROOT
from models.alive import PLAIN
from models.pools import POOLS
from models.secret_files import FOLDER
from tests.containers.trial import ADOPT, SHOW
from tests.support.compose import (
    COMPOSE_FILE,
    IN_FILES,
    MAKER,
    argv_of,
    last_stage,
    own_services,
    read_compose,
    seconds_of,
    start_order,
)

COMPOSE = read_compose({})
#: Without those who only watch: tests/unit/test_dashboards.py has them.
SERVICES: dict[str, dict[str, Any]] = {
    name: service for name, service in COMPOSE["services"].items() if "profiles" not in service
}
OUR_OWN = list(own_services(COMPOSE))
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
        if name not in (*OUR_OWN, MAKER):
            assert re.fullmatch(r"\w+:\d+(-\w+)?", service["image"]), service["image"]
    assert SERVICES["postgres"]["image"] == "postgres:18"
    assert "postgres:/var/lib/postgresql" in SERVICES["postgres"]["volumes"]
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
        blobs = "blobs:/var/lib/fairline/blobs"
        secrets = "owner-secrets" if name == "migrate" else "secrets"
        assert SERVICES[name]["volumes"] == [blobs, f"{secrets}:/run/secrets:ro"]


def test_every_service_has_a_limit_of_memory_and_processes() -> None:
    gigabytes = {name: int(SERVICES[name]["mem_limit"].removesuffix("g")) for name in SERVICES}
    assert all(service["pids_limit"] >= 512 for service in SERVICES.values())
    run_gigabytes = (POOLS["long"].memory_mb or 0) / 1024
    assert gigabytes["worker-long"] > POOLS["long"].slots * run_gigabytes
    # Its connections, and as much again for PostgreSQL's own processes.
    assert SERVICES["postgres"]["pids_limit"] >= 2 * 200


def test_flower_has_a_password_and_cannot_change_anything() -> None:
    assert SERVICES["flower"]["environment"]["FLOWER_ADDRESS"] == "0.0.0.0", "refused without one"
    assert "--read_only=true" in argv_of(SERVICES["flower"]["command"])


def test_every_setting_can_be_set_and_nothing_else() -> None:
    given = {key for name in OUR_OWN for key in SERVICES[name]["environment"]}
    settings = {f"FAIRLINE_{name.upper()}" for name in Settings.model_fields}
    assert {key for key in given if key.startswith("FAIRLINE_")} == (
        settings - IN_FILES | {LOG_LEVEL}
    )


def test_the_scheduler_has_the_limits_of_ticks_and_its_relief_the_pace_of_promotion() -> None:
    scheduler, api = (SERVICES[name]["environment"] for name in ("scheduler", "api"))
    shared = ("SERVED_POOLS", "SUBMIT_PER_SECOND", "SUBMIT_BURST", "QUEUE_DEPTH")
    for name in (*shared, "PROMOTE_PER_SECOND", "KEEP_KEYS_HOURS"):
        assert {f"FAIRLINE_{name}"} <= scheduler.keys() & api.keys()


def test_callers_without_a_key_are_refused_unless_a_tenant_is_named() -> None:
    assert not SERVICES["api"]["environment"]["FAIRLINE_ANONYMOUS_TENANT"]
    open_database = read_compose({"FAIRLINE_ANONYMOUS_TENANT": "demo"})
    api = open_database["services"]["api"]["environment"]
    assert api["FAIRLINE_ANONYMOUS_TENANT"] == "demo"


def test_no_password_is_in_the_file_or_the_environment_of_a_service_that_runs() -> None:
    text = COMPOSE_FILE.read_text()
    assert not re.search(r"(PASSWORD|BASIC_AUTH|_PASS)\w*: *[^/\s]", text)
    assert "://fairline" not in text and "guest" not in text
    given = {
        "POSTGRES_PASSWORD": "one",
        "POSTGRES_APP_PASSWORD": "own",
        "RABBITMQ_PASSWORD": "two",
        "FLOWER_BASIC_AUTH": "three",
        "GRAFANA_PASSWORD": "four",
    }
    compose = read_compose(given)["services"]
    maker = compose.pop(MAKER)
    assert maker["environment"] == dict.fromkeys(given), "handed through if they are set"
    for name, service in compose.items():
        values = [str(value) for value in service.get("environment", {}).values()]
        assert not set(given.values()) & set(values), name


def test_only_who_makes_the_passwords_is_root_and_it_can_do_little_else() -> None:
    maker = SERVICES[MAKER]
    assert argv_of(maker["command"]) == ("python", "-m", compose_secrets.__name__)
    assert (maker["user"], maker["restart"], maker["network_mode"]) == ("0:0", "no", "none")
    assert (maker["cap_drop"], maker["cap_add"]) == (["ALL"], ["CHOWN", "DAC_OVERRIDE"])
    assert maker["read_only"]
    assert maker["volumes"] == [f"secrets:{FOLDER}", f"owner-secrets:{OWNER_FOLDER}"]
    assert maker["security_opt"] == ["no-new-privileges:true"]
    for name in OUR_OWN:
        assert "user" not in SERVICES[name] and "cap_add" not in SERVICES[name]
    assert readers_of("secrets") == {*OUR_OWN, "postgres", "rabbitmq", "grafana"} - {"migrate"}
    assert readers_of("owner-secrets") == {"migrate"}
    for name in ("postgres", "rabbitmq", "grafana"):  # the others wait for one of these
        assert MAKER in COMPOSE["services"][name]["depends_on"]


def readers_of(volume: str) -> set[str]:
    """The services that have it where secrets are read from."""
    return {
        name
        for name, service in COMPOSE["services"].items()
        if f"{volume}:{FOLDER}:ro" in service.get("volumes", ())
    }


def test_the_examples_of_passwords_are_empty() -> None:
    text = (PROJECT_ROOT / ".env.example").read_text()
    for name in SERVICES[MAKER]["environment"]:
        assert f"\n#{name}=\n" in text


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """What the service writes, given variables; who owns the files is in `owners`.

    Names of files for `migrate` begin with `owner/`.
    """
    of_all, of_owner = tmp_path / "all", tmp_path / "owner"

    def name_of(file: Path) -> str:
        name = file.name.removeprefix(".").removesuffix(".new")
        return f"owner/{name}" if file.parent == of_owner else name

    def own(descriptor: int, user: int, group: int) -> None:
        owners[name_of(Path(os.readlink(f"/proc/self/fd/{descriptor}")))] = user
        assert group == user

    def write(**given: str) -> dict[str, str]:
        for folder in (of_all, of_owner):
            folder.mkdir(exist_ok=True)
        compose_secrets.SecretFiles(of_all, of_owner, given).write_all()
        files = [*of_all.iterdir(), *of_owner.iterdir()]
        for file in files:
            assert file.stat().st_mode & 0o777 == 0o600
        return {name_of(file): file.read_text().strip() for file in files}

    owners: dict[str, int] = {}
    write.owners = owners  # type: ignore[attr-defined]  # for the test of owners
    monkeypatch.setattr(os, "fchown", own)
    return write


def test_passwords_are_random_and_stay_the_same(written: Callable[..., dict[str, str]]) -> None:
    first = written()
    assert len(first) == 12
    assert first["owner/fairline_database_url"] == first.pop("fairline_database_url")
    assert len({*first.values()}) == len(first)
    del first["rabbitmq_definitions.json"]  # hashes, with other salt each time
    assert first.items() <= written().items()
    for name in ("postgres", "postgres_app", "rabbitmq", "grafana"):
        assert len(first[f"{name}_password"]) == 32


@pytest.mark.parametrize("cut_short_at", range(12))
def test_a_start_that_was_killed_changes_no_password_that_was_written(
    written: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, cut_short_at: int
) -> None:
    count, replace, seen = 0, Path.replace, dict[str, str]()

    def replace_some(new: Path, target: Path) -> Path:
        nonlocal count
        if count == cut_short_at:
            raise KeyboardInterrupt
        count += 1
        owner = "owner/" if target.parent.name == "owner" else ""
        seen[owner + target.name] = new.read_text().strip()
        return replace(new, target)

    monkeypatch.setattr(Path, "replace", replace_some)
    with pytest.raises(KeyboardInterrupt):
        written()
    monkeypatch.undo()
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    seen.pop("rabbitmq_definitions.json", None)
    assert seen.items() <= written().items()


def test_a_password_that_is_set_replaces_the_one_that_is_kept(
    written: Callable[..., dict[str, str]],
) -> None:
    before = written()
    after = written(RABBITMQ_PASSWORD="a/b@c", FLOWER_BASIC_AUTH="me:secret", GRAFANA_PASSWORD="")
    assert after["fairline_broker_url"] == "amqp://fairline:a%2Fb%40c@rabbitmq:5672//"
    assert after["flower_basic_auth"] == "me:secret"
    for name in ("postgres_password", "grafana_password", "fairline_database_url"):
        assert after[name] == before[name]
    kept = written()
    assert kept["fairline_broker_url"] == after["fairline_broker_url"]


def test_addresses_and_passwords_agree_between_services(
    written: Callable[..., dict[str, str]],
) -> None:
    files, postgres = written(), SERVICES["postgres"]["environment"]
    settings = Settings(
        database_url=files["fairline_database_url"], broker_url=files["fairline_broker_url"]
    )
    database = urlsplit(settings.database_url)
    assert PLAIN.fullmatch(settings.database_url), "health checks would take longer"
    assert (database.hostname, database.port) == ("postgres", 5432)
    assert (database.username, database.password) == (
        "fairline_app",
        files["postgres_app_password"],
    )
    owner = urlsplit(files["owner/fairline_owner_database_url"])
    assert files["owner/fairline_database_url"] == files["fairline_database_url"]
    assert owner.username == postgres["POSTGRES_USER"] != database.username
    assert Path(postgres["POSTGRES_PASSWORD_FILE"]) == FOLDER / "postgres_password"
    assert owner.password == files["postgres_password"]
    for url in (database, owner):
        assert url.path == f"/{postgres['POSTGRES_DB']}"
        assert url.netloc.endswith("@postgres:5432")
    broker, api = urlsplit(settings.broker_url), urlsplit(files["flower_broker_api"])
    assert (broker.hostname, broker.port) == ("rabbitmq", 5672)
    assert (api.hostname, api.port, api.path) == ("rabbitmq", 15672, "/api/")
    users = {one["name"]: one for one in json.loads(files["rabbitmq_definitions.json"])["users"]}
    assert {name: one["tags"] for name, one in users.items()} == {
        "fairline": ["administrator"],
        "flower": ["monitoring"],
    }
    for url in (broker, api):
        salted = base64.b64decode(users[url.username or ""]["password_hash"])
        assert salted[4:] == sha256(salted[:4] + (url.password or "").encode()).digest()
    content = COMPOSE["configs"]["rabbitmq"]["content"]
    assert f"\nload_definitions = {FOLDER}/rabbitmq_definitions.json\n" in content
    grafana = COMPOSE["services"]["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"{FOLDER}/grafana_password"
    for name in OUR_OWN:
        assert SERVICES[name]["environment"]["FAIRLINE_QUEUE_TYPE"] == "quorum"


def test_files_belong_to_who_reads_them(written: Callable[..., dict[str, str]]) -> None:
    written()
    ours = int([words[1] for words in last_stage() if words[0] == "USER"][-1].partition(":")[0])
    assert written.owners == {  # type: ignore[attr-defined]  # of the fixture
        "postgres_password": 999,
        "rabbitmq_definitions.json": 999,
        "grafana_password": 472,
        "postgres_app_password": 0,
        "rabbitmq_password": 0,
        "rabbitmq_flower_password": 0,
        **dict.fromkeys(
            (
                "fairline_database_url",
                "fairline_broker_url",
                "flower_basic_auth",
                "flower_broker_api",
                "owner/fairline_database_url",
                "owner/fairline_owner_database_url",
            ),
            ours,
        ),
    }


def test_commands_of_the_runbook_are_those_that_compose_test_types() -> None:
    runbook = (PROJECT_ROOT / "docs/operations.md").read_text()
    assert SHOW in runbook and ADOPT in runbook


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
