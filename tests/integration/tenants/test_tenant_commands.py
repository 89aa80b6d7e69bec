"""``flask --app app tenants …`` and ``keys …``, with what they say and how they exit."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from flask import Flask
from sqlalchemy import Engine

from app import config
from app.cli import cells, keys, tenants
from app.config import Settings
from app.stack.ports import free_port
from app.tenants.changes import issue_key, keep_operator_key, revoke_key
from app.tenants.directory import Directory
from app.tenants.listing import read_tenant
from app.tenants.tenant import PoolLimits, TenantProfile
from models.store.session import open_engine
from tests.support.database_fixture import DatabaseFixture


class Terminal:
    """Runs a command as ``flask`` would."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        app = Flask("app", static_folder=None)
        app.cli.add_command(tenants.tenants)
        app.cli.add_command(keys.keys)
        self._runner = app.test_cli_runner()

    def run(self, line: str) -> Result:
        return self._runner.invoke(args=line.split())

    def do(self, line: str) -> str:
        """What a command that succeeds says."""
        result = self.run(line)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, line: str, code: int = 1) -> str:
        """What a command that fails says."""
        result = self.run(line)
        assert result.exit_code == code, result.output
        return result.stderr

    def tenant(self, name: str) -> TenantProfile:
        with self.engine.connect() as connection:
            listed = read_tenant(connection, name)
        assert listed is not None
        return listed.tenant


@pytest.fixture
def terminal(api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    api_database.execute("DELETE FROM api_keys; DELETE FROM tenant_limits")
    api_database.execute("DELETE FROM tenants WHERE name NOT IN ('demo', 'other')")
    for module in (cells, keys, tenants):
        monkeypatch.setattr(module, "database", lambda: api_database.engine)
    return Terminal(api_database.engine)


def test_a_tenant_is_created_with_its_terms(terminal: Terminal) -> None:
    said = terminal.do(
        "tenants create acme --tier enterprise --weight 500 --rate 20 --burst 100"
        " --cap medium=20 --cap long=2 --reserve medium=2 --depth medium=1000000"
    )
    assert said == (
        "tenant acme: enterprise, weight 500, 20 submissions per second, burst 100,"
        " cap long=2, cap medium=20, reserve medium=2, depth medium=1000000\n"
    )
    acme = terminal.tenant("acme")
    assert (acme.tier, acme.weight, acme.submit_per_second, acme.submit_burst) == (
        *("enterprise", 500.0),
        *(20.0, 100.0),
    )
    assert acme.limits == {"medium": PoolLimits(20, 2, 1_000_000), "long": PoolLimits(2)}


def test_terms_are_changed_one_by_one_and_cleared_by_none(terminal: Terminal) -> None:
    terminal.do("tenants create acme --weight 5 --rate 20 --cap medium=20 --depth medium=9")
    terminal.do("tenants set acme --tier pro --weight none --cap medium=none")
    acme = terminal.tenant("acme")
    assert (acme.tier, acme.weight, acme.submit_per_second) == ("pro", None, 20.0)
    assert acme.limits == {"medium": PoolLimits(depth=9)}
    assert terminal.do("tenants set acme --depth medium=none --rate none") == "tenant acme: pro\n"


def test_a_tenant_is_limited_to_types(terminal: Terminal) -> None:
    said = terminal.do("tenants create acme --types score_application,echo --cap medium=2")
    assert said == "tenant acme: standard, cap medium=2, types echo,score_application\n"
    assert terminal.tenant("acme").types == ("echo", "score_application")
    terminal.do("tenants set acme --cap medium=3")
    assert terminal.tenant("acme").types == ("echo", "score_application")
    assert "types echo,score_application" in terminal.do("tenants list")
    assert "types" not in terminal.do("tenants set acme --types none")
    assert terminal.tenant("acme").types is None
    assert "none at all" in terminal.do("tenants set acme --types ,")
    assert terminal.tenant("acme").types == ()


def test_tenants_are_listed_as_a_table(terminal: Terminal) -> None:
    terminal.do("tenants create acme --tier pro --weight 25 --rate 2.5 --cap medium=20")
    assert terminal.do("tenants list").splitlines() == [
        "TENANT  TIER      WEIGHT    TIER LIMITS  RATE  BURST  LIMITS",
        "acme    pro       25 (own)  yes          2.5   -      cap medium=20",
        "demo    standard  10        no           -     -      -",
        "other   standard  10        no           -     -      -",
    ]


def test_the_limits_of_a_tier_are_lifted_and_imposed(terminal: Terminal) -> None:
    assert terminal.do("tenants create acme") == "tenant acme: standard\n"
    lifted = "tenant acme: standard, without its tier's limits\n"
    assert terminal.do("tenants set acme --no-tier-limits") == lifted
    assert not terminal.tenant("acme").tier_limits
    assert not terminal.run("tenants set acme --tier-limits --burst 5").stderr
    assert terminal.tenant("acme").tier_limits


def test_a_burst_without_a_rate_is_told_to_limit_nothing(terminal: Terminal) -> None:
    line = "tenants create acme --burst 5 --no-tier-limits"
    assert "has no effect" in terminal.run(line).stderr
    assert not terminal.run("tenants set acme --rate 2").stderr


def test_a_database_that_is_away_is_one_line_with_the_way_to_the_stacks(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    away = Settings.model_construct(database_url=f"postgresql+psycopg2://127.0.0.1:{free_port()}/x")
    for module in (cells, keys, tenants):
        monkeypatch.setattr(module, "database", lambda: open_engine(away))
    monkeypatch.setattr(config, "settings", Settings.model_construct)
    told = terminal.refused("tenants list")
    assert told.startswith("Error: the database is not responding: ") and told.count("\n") == 1
    assert told.endswith('(for the stack of make up: eval "$(python -m app.stack env)")\n')


def test_ensuring_a_tenant_twice_changes_nothing(terminal: Terminal) -> None:
    terminal.do("tenants set demo --tier pro")
    assert terminal.do("tenants ensure demo") == "tenant demo\n"
    assert terminal.tenant("demo").tier == "pro"
    terminal.do("tenants set demo --tier standard")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tenants create demo", "There is a tenant 'demo' already."),
        ("tenants create Acme", "name must be 1 to 63"),
        ("tenants set nobody --tier pro", "There is no tenant 'nobody'."),
        ("tenants create acme --cap gpu=3", "Error: gpu is no pool; known: long, medium, short"),
        ("tenants create acme --tier pro --reserve medium=2", "is for the tier enterprise only"),
        ("tenants set demo --reserve medium=2", "is for the tier enterprise only"),
        ("tenants create acme --cap medium=0", "--cap medium must be from 1"),
        ("tenants create acme --rate 0", "--rate must be from"),
        (
            "tenants create acme --tier enterprise --cap medium=1 --reserve medium=2",
            "--reserve medium is more than --cap",
        ),
        ("tenants create acme --weight nan", "--weight must be from"),
        ("tenants create acme --tier free --weight 2", "is not for the tier free"),
        ("keys issue --tenant nobody", "There is no tenant 'nobody'."),
        ("keys revoke abcd1234", "There is no key 'abcd1234'."),
        ("keys list --tenant nobody", "There is no tenant 'nobody'."),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(terminal: Terminal, line: str, said: str) -> None:
    told = terminal.refused(line)
    assert said in told and told.startswith("Error: ") and told.count("\n") == 1
    with terminal.engine.connect() as connection:
        assert read_tenant(connection, "acme") is None


@pytest.mark.parametrize(
    "line",
    [
        "tenants create",
        "tenants set demo",
        "tenants create acme --tier gold",
        "tenants create acme --cap medium",
        "tenants create acme --cap medium=many",
        "tenants create acme --weight heavy",
        "keys issue",
        "keys issue --tenant demo --operator",
        "keys revoke fair_abcd1234_tooshort",
    ],
)
def test_a_command_that_is_not_understood_exits_with_2(terminal: Terminal, line: str) -> None:
    told = terminal.refused(line, code=2)
    assert "Usage:" in told and "tooshort" not in told


def test_a_key_is_printed_once_and_lives_until_it_is_revoked(terminal: Terminal) -> None:
    key = terminal.do("keys issue --tenant demo --name laptop").strip()
    caller = Directory(terminal.engine, 2.0, refresh_seconds=0).caller(f"Bearer {key}")
    assert caller.tenant is not None and caller.tenant.name == "demo"
    listed = terminal.do("keys list")
    assert key not in listed
    assert listed.splitlines()[1].split()[:3] == [caller.key, "demo", "laptop"]
    revoked = terminal.do(f"keys revoke {key}")
    assert key[-32:] not in revoked and caller.key in revoked
    assert terminal.do(f"keys revoke {caller.key}") == revoked  # the first one counts
    assert terminal.do("keys list").splitlines()[1].split()[-1] != "-"


def test_an_operators_key_is_listed_as_such(terminal: Terminal) -> None:
    terminal.do("keys issue --operator")
    terminal.do("keys issue --tenant demo")
    assert "(operator)" in terminal.do("keys list")
    assert "(operator)" not in terminal.do("keys list --tenant demo")


def test_the_key_of_a_stack_is_issued_once_and_read_by_its_owner_only(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "operator.key"
    keep_operator_key(terminal.engine, file)
    first = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keep_operator_key(terminal.engine, file)
    assert file.read_text() == first
    caller = Directory(terminal.engine, 2.0, refresh_seconds=0).caller(f"Bearer {first.strip()}")
    assert caller.tenant is None
    revoke_key(terminal.engine, caller.key)
    keep_operator_key(terminal.engine, file)
    assert file.read_text() != first


def test_a_tenants_key_in_the_file_of_the_stack_is_replaced(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "operator.key"
    file.write_text(issue_key(terminal.engine, "demo").key)
    keep_operator_key(terminal.engine, file)
    caller = Directory(terminal.engine, 2.0, refresh_seconds=0).caller(
        f"Bearer {file.read_text().strip()}"
    )
    assert caller.tenant is None


def test_a_tenant_is_suspended_resumed_and_deleted(terminal: Terminal) -> None:
    terminal.do("tenants create acme")
    assert terminal.do("tenants suspend acme") == "tenant acme: suspended\n"
    assert terminal.tenant("acme").suspended
    assert terminal.do("tenants list").count("suspended") == 1
    assert terminal.do("tenants resume acme") == "tenant acme: resumed\n"
    assert not terminal.tenant("acme").suspended
    assert terminal.run("tenants delete acme").exit_code == 1, "it asks first"
    assert not terminal.tenant("acme").deleting
    terminal.do("tenants delete acme --yes")
    assert terminal.tenant("acme").deleting
    assert "is being deleted" in terminal.refused("tenants resume acme")
    assert "no tenant" in terminal.refused("tenants suspend nobody")


def test_keys_are_created_with_scopes_and_an_expiry_and_listed_with_them(
    terminal: Terminal,
) -> None:
    created = "keys create --operator --scopes read,scale --expires 90d --name watcher"
    short = terminal.do(created).strip().split("_")[1]
    titles, *rows = terminal.do("keys list").splitlines()
    assert titles.split("  ")[0] == "KEY"
    for title in ("SCOPES", "EXPIRES", "LAST USED"):
        assert title in titles
    row = next(row for row in rows if row.startswith(short))
    expires = datetime.now(UTC) + timedelta(days=90)
    assert "read,scale" in row and f"{expires:%Y-%m-%d}" in row
    other = terminal.do("keys issue --tenant demo --expires 2999-01-31T12:00:00Z").split("_")[1]
    row = next(row for row in terminal.do("keys list").splitlines() if row.startswith(other))
    assert "submit,read" in row and "2999-01-31 12:00:00Z" in row


@pytest.mark.parametrize(
    "options",
    [
        "--operator --scopes submit",
        "--operator --scopes ,",
        "--tenant demo --scopes read,operate",
        "--tenant demo --scopes all",
        "--tenant demo --expires 2001-01-31T12:00:00Z",
        "--tenant demo --expires 0d",
        "--tenant demo --expires 2999-01-31T12:00:00",
        "--tenant demo --expires soon",
        "--tenant demo --expires 99999999999d",
    ],
)
def test_keys_that_could_do_nothing_or_too_much_are_not_created(
    terminal: Terminal, options: str
) -> None:
    before = terminal.do("keys list")
    assert terminal.run(f"keys create {options}").exit_code in (1, 2)
    assert terminal.do("keys list") == before
