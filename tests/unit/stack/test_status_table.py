"""The process table and the small pure parts of the stack."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest

from app.stack.environment import environment
from app.stack.home import SPARE_SOCKETS, Home, drop_socket_folder, socket_folder
from app.stack.leftovers import STACK_VARIABLE
from app.stack.options import StackOptions, read_options
from app.stack.ports import keep_ports
from app.stack.postgres import EmbeddedPostgres
from app.stack.privileges import GROUP, GROUP_OWNER, MASK, NO_ID, OTHERS, USER_OWNER, with_group
from app.stack.programs import table
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.spawn import spawn
from app.stack.spec import ProcessSpec


def _commands(home: Path, **variables: str) -> dict[str, tuple[str, ...]]:
    options = dataclasses.replace(read_options(variables), home=home)
    rows = table(options, Home(home))
    programs = [*rows.early, *rows.late]
    specs = [program.make(n) for program, count in programs for n in range(1, count + 1)]
    return {spec.name: spec.argv for spec in specs}


def test_default_table_holds_the_processes_of_the_contract(tmp_path: Path) -> None:
    assert set(_commands(tmp_path)) == {
        *("api", "scheduler-1", "flower"),
        *("worker-short-1", "worker-medium-1", "worker-long-1"),
    }


def test_counts_come_from_the_environment(tmp_path: Path) -> None:
    names = _commands(tmp_path, WORKERS_MEDIUM="3", WORKERS_LONG="0", SCHEDULERS="2")
    assert {"worker-medium-3", "scheduler-2"} <= set(names)
    assert "worker-long-1" not in names


def node_names(home: Path, **given: str) -> dict[str, str]:
    """What Celery calls the workers, by what the stack calls them."""
    commands = _commands(home, WORKERS_SHORT="2", **given).items()
    return {name: argv[argv.index("-n") + 1] for name, argv in commands if "-n" in argv}


def test_a_worker_has_the_same_name_in_the_stack_and_in_celery(tmp_path: Path) -> None:
    names = node_names(tmp_path)
    assert len(names) == 4
    assert all(node == f"{name}@%h" for name, node in names.items())


def test_workers_of_two_stacks_at_one_broker_never_share_a_name(tmp_path: Path) -> None:
    broker = {"FAIRLINE_BROKER_URL": "amqp://elsewhere"}
    names = [
        node
        for home in (tmp_path / "a", tmp_path / "b")
        for node in node_names(home, **broker).values()
    ]
    assert len(set(names)) == len(names) == 8


def test_front_door_stops_before_workers_and_workers_before_the_scheduler(tmp_path: Path) -> None:
    rows = table(dataclasses.replace(read_options({}), home=tmp_path), Home(tmp_path))
    ranks = {program.name: program.stop_rank for program, _ in [*rows.early, *rows.late]}
    assert ranks["api"] < ranks["worker-medium"] < ranks["scheduler"]


def test_only_a_database_of_the_stacks_own_is_open_to_whoever_has_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLINE_ANONYMOUS_TENANT", raising=False)
    own = dataclasses.replace(read_options({}), home=tmp_path, database_url="")
    given = dataclasses.replace(own, database_url="postgresql+psycopg2://db/fairline")

    def anonymous(options: StackOptions) -> str:
        return environment(options, Home(tmp_path), "db", "broker")["FAIRLINE_ANONYMOUS_TENANT"]

    assert (anonymous(own), anonymous(given)) == ("demo", "")
    assert str(tmp_path / "operator.key") in table(own, Home(tmp_path)).migrate.argv
    assert "--operator-key" not in table(given, Home(tmp_path)).migrate.argv
    for named in ("", "acme"):
        monkeypatch.setenv("FAIRLINE_ANONYMOUS_TENANT", named)
        assert (anonymous(own), anonymous(given)) == (named, named)


def test_access_list_lets_one_group_pass_and_nobody_else() -> None:
    assert with_group(0o40700, [], gid=65432) == [
        (USER_OWNER, 7, NO_ID),
        (GROUP_OWNER, 0, NO_ID),
        (GROUP, 1, 65432),
        (MASK, 1, NO_ID),
        (OTHERS, 0, NO_ID),
    ]


def test_access_list_keeps_the_rights_of_the_owning_group() -> None:
    entries = with_group(0o40750, [], gid=65432)
    assert (GROUP_OWNER, 5, NO_ID) in entries
    assert (MASK, 5, NO_ID) in entries


def test_access_list_keeps_the_entries_of_others() -> None:
    before = [(USER_OWNER, 7, NO_ID), (GROUP_OWNER, 0, NO_ID), (GROUP, 4, 50), (MASK, 4, NO_ID)]
    entries = with_group(0o40740, [*before, (OTHERS, 0, NO_ID)], gid=65432)
    assert (GROUP, 4, 50) in entries
    assert (MASK, 5, NO_ID) in entries


def test_large_log_is_emptied_and_its_text_kept_beside_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    log = home.log("api")
    with log.open("ab") as writer:
        writer.write(b"old" * 10)
        writer.flush()
        home.rotate_logs(max_bytes=10)
        writer.write(b"new")
    assert log.read_bytes() == b"new"
    assert (home.logs / "api.log.1").read_bytes() == b"old" * 10
    assert (home.logs / "api.log.1").stat().st_mode & 0o077 == 0


def test_nobody_else_may_look_into_what_a_stack_keeps(tmp_path: Path) -> None:
    home = Home(tmp_path / "new")
    home.prepare()
    # Under root PostgreSQL's user passes the folder, and lists nothing.
    assert stat.S_IMODE(home.path.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    for folder in (home.logs, home.blobs):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o755)  # as an earlier version made it
    home.prepare()
    assert {stat.S_IMODE(each.stat().st_mode) for each in (home.logs, home.blobs)} == {0o700}
    child = spawn(ProcessSpec("quick", ("true",)), os.environ, home.log("quick"))
    child.popen.wait()
    assert stat.S_IMODE(home.log("quick").stat().st_mode) == 0o600


def test_processes_get_the_environment_that_they_need(tmp_path: Path) -> None:
    given = {
        "PATH": os.environ["PATH"],
        "TZ": "UTC",
        "MY_TOKEN": "x",
        "ANTHROPIC_API_KEY": "y",
        STACK_VARIABLE: "z",
    }
    options = dataclasses.replace(read_options({}), home=tmp_path)
    rows = table(options, Home(tmp_path))
    specs = [rows.migrate, *(program.make(1) for program, _ in [*rows.early, *rows.late])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.stack.rabbitmq.find_server", lambda: Path("/opt/rabbitmq-server"))
        node = EmbeddedRabbitMQ(tmp_path)
        node.prepare()
        specs += [*node.processes(), *EmbeddedPostgres(tmp_path).processes()]
    basic = {"PATH", "TZ", STACK_VARIABLE}
    for spec in specs:
        seen = {name for name in given if spec.inherits(name)}
        if spec.name in ("postgres", "rabbitmq", "epmd"):
            assert seen == basic, spec.name
        elif spec.name.startswith("worker"):
            assert seen == given.keys()
        else:
            assert seen == given.keys() - {"ANTHROPIC_API_KEY"}, spec.name
    bare = ProcessSpec("seen", ("env",), env={"OWN": "1"}, inherits=lambda name: name == "PATH")
    spawn(bare, given, tmp_path / "seen.log").popen.wait()
    assert {line.partition("=")[0] for line in (tmp_path / "seen.log").read_text().split()} == {
        "PATH",
        "OWN",
    }


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Home(tmp_path).prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_ports_stay_the_same_while_they_are_free(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    keep_ports(("a", "b"), file)
    first = file.read_text()
    keep_ports(("a", "b"), file)
    assert file.read_text() == first


@pytest.mark.parametrize("left", ["", '{"a": 20'])
def test_what_a_full_disk_cut_off_is_written_again(tmp_path: Path, left: str) -> None:
    file = tmp_path / "ports.json"
    file.write_text(left)
    keep_ports(("a", "b"), file)
    assert set(json.loads(file.read_text())) == {"a", "b"}
    (tmp_path / "stack-id").write_text("")
    first = Home(tmp_path).stack_id()
    assert len(first) == 8 and Home(tmp_path).stack_id() == first


def test_socket_of_a_deep_home_moves_to_a_short_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 110)
    folder = socket_folder(deep, "control.sock")
    try:
        assert folder.parent == SPARE_SOCKETS
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        drop_socket_folder(folder)
    assert not folder.exists()
