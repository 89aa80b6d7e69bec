"""What ``make up`` takes from the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.stack.__main__ import check_settings
from app.stack.environment import GENERATED, drop_generated, environment, shell_settings
from app.stack.home import Home
from app.stack.options import read_options
from app.stack.spec import PROJECT_ROOT, StackError
from models.pools import chain_of, read_pools
from models.settings import exit_if_invalid, read_settings


def test_defaults_are_those_of_the_contract() -> None:
    options = read_options({})
    assert (options.port, options.flower_port) == (8000, 5555)
    assert options.workers == {"short": 1, "medium": 1, "long": 1}
    assert (options.api_workers, options.schedulers, options.broker) == (2, 1, "auto")
    assert options.home == PROJECT_ROOT / ".run"


def test_absolute_home_stays_where_it_is(tmp_path: object) -> None:
    assert str(read_options({"FAIRLINE_HOME": str(tmp_path)}).home) == str(tmp_path)


def test_empty_variable_means_the_default() -> None:
    assert read_options({"PORT": "", "BROKER": ""}).port == 8000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "0"),
        ("PORT", "70000"),
        ("WORKERS_LONG", "-1"),
        ("BROKER", "kafka"),
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_variable(name: str, value: str) -> None:
    with pytest.raises(StackError, match=name):
        read_options({name: value})


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("WORKER=3", "did you mean WORKERS_SHORT WORKERS_MEDIUM WORKERS_LONG?"),
        ("FAIRLINE_PROT=1", "'make help' and .env.example list them"),
        ("WORKERS_MEDIUM=3", ""),
        ("FAIRLINE_PORT=9000", ""),
        ("SLICES=medium.free=1 medium.paid=2", ""),
    ],
)
def test_misspelled_variables_of_make_are_refused(assignment: str, said: str) -> None:
    words = ("make", "--dry-run", "--no-print-directory", "up", assignment)
    done = subprocess.run(words, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    assert bool(done.returncode) is bool(said), done.stderr
    assert said in done.stderr


@pytest.fixture
def env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ``.env`` of a stack; nothing is set in the environment."""
    for name in [name for name in os.environ if name.startswith("FAIRLINE_")]:
        monkeypatch.delenv(name)
    for name in ("PORT", "API_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("app.stack.options.PROJECT_ROOT", tmp_path)
    return tmp_path / ".env"


def test_the_environment_wins_over_the_file_and_the_short_name_over_the_long(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_file.write_text("FAIRLINE_PORT=9100\nFAIRLINE_API_WORKERS=3\n")
    assert (read_options().port, read_options().api_workers) == (9100, 3)
    env_file.write_text("FAIRLINE_PORT=9100\nPORT=9101\n")
    assert read_options().port == 9101
    monkeypatch.setenv("FAIRLINE_PORT", "9102")
    assert read_options().port == 9102
    monkeypatch.setenv("PORT", "9103")
    assert read_options().port == 9103


def test_every_setting_in_the_file_reaches_the_processes(env_file: Path) -> None:
    samples = {"database_url": "postgresql+psycopg2://there/db", "port": "9100", "api_workers": "3"}
    names = {f"FAIRLINE_{name.upper()}": samples.get(name, "{}") for name in Settings.model_fields}
    env_file.write_text("\n".join(f"{name}={value}" for name, value in names.items()))
    variables = environment(
        options := read_options(), Home(options.home), options.database_url, options.broker_url
    )
    # What is not among the variables, the processes read from the file themselves.
    assert {name: variables.get(name, value) for name, value in names.items()} == names


def test_settings_that_a_stack_generated_are_ignored_by_the_next_start() -> None:
    given = {"FAIRLINE_BROKER_URL": "amqp://elsewhere", "PATH": "/bin"}
    stack = {
        **given,
        "FAIRLINE_DATABASE_URL": "postgresql://run",
        "FAIRLINE_HOME": "/run",
        "FAIRLINE_QUEUE_TYPE": "classic",
    }
    shell = {**shell_settings(stack, given), "FAIRLINE_QUEUE_TYPE": "quorum"}
    drop_generated(shell)
    assert shell == {
        "FAIRLINE_BROKER_URL": "amqp://elsewhere",
        "FAIRLINE_HOME": "/run",
        "FAIRLINE_QUEUE_TYPE": "quorum",
    }
    options = read_options(shell)
    assert (options.database_url, options.broker_url) == ("", "amqp://elsewhere")


def test_a_mark_that_no_stack_wrote_changes_nothing() -> None:
    shell = {GENERATED: "[1]", "FAIRLINE_HOST": "::"}
    drop_generated(shell)
    assert shell == {"FAIRLINE_HOST": "::"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SCALE_MAX", '{"medium": "x"}', "FAIRLINE_SCALE_MAX: medium must be a whole number"),
        ("SCALE_MAX", '{"giant": 1}', "FAIRLINE_SCALE_MAX: giant is not a pool; known: long"),
        (
            "SCALE_MAX",
            '{"medium": 0}',
            "the scaling of medium: the minimum of 1 workers is above the maximum of 0",
        ),
        ("SCALE_MAX", "{medium: 1}", "FAIRLINE_SCALE_MAX: is not valid JSON: Expecting"),
        (
            "SCALE_POLICY",
            '{"medium": {"foo": 1}}',
            "FAIRLINE_SCALE_POLICY: medium.foo is not a rule",
        ),
        ("QUOTAS", '{"claude": 5}', "FAIRLINE_QUOTAS: claude must be an object, as JSON, not 5"),
        ("PORT", "http", "FAIRLINE_PORT: must be a whole number, not 'http'"),
    ],
)
def test_setting_that_makes_no_sense_is_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"FAIRLINE_{name}", value)
    with pytest.raises(SystemExit) as ended:
        read_settings(Settings)
    line = str(ended.value)
    assert line.startswith(f"fairline: {said}") and "\n" not in line


OIDC = {
    "PUBLIC_URL": "https://fair.example/",
    "OIDC_ISSUER": "https://login.example/realms/main",
    "OIDC_CLIENT_ID": "fairline",
    "OIDC_OPERATORS": "admins, owners",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PUBLIC_URL": ""}, "FAIRLINE_OIDC_ISSUER needs FAIRLINE_PUBLIC_URL too"),
        ({"OIDC_CLIENT_ID": ""}, "FAIRLINE_OIDC_ISSUER needs FAIRLINE_OIDC_CLIENT_ID too"),
        ({"OIDC_OPERATORS": " , "}, "FAIRLINE_OIDC_ISSUER needs FAIRLINE_OIDC_OPERATORS or"),
        ({"OIDC_ISSUER": "http://login.example"}, "FAIRLINE_OIDC_ISSUER: must begin with https"),
        ({"PUBLIC_URL": "http://fair.example"}, "FAIRLINE_PUBLIC_URL: must begin with https"),
        ({"PUBLIC_URL": "https://fair.example/x"}, "FAIRLINE_PUBLIC_URL: must have no path"),
    ],
)
def test_sign_in_by_openid_connect_is_configured_completely_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    for name, value in OIDC.items():
        monkeypatch.setenv(f"FAIRLINE_{name}", value)
    assert read_settings(Settings).public_url == "https://fair.example"
    for name, value in changes.items():
        monkeypatch.setenv(f"FAIRLINE_{name}", value)
    with pytest.raises(SystemExit, match=f"^fairline: {said}"):
        read_settings(Settings)


def test_more_workers_than_the_autoscaler_may_have_are_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLINE_SCALE_MAX", '{"medium": 2}')
    check_settings(read_options({"WORKERS_MEDIUM": "3"}))
    with pytest.raises(SystemExit, match="the minimum of 3 workers is above the maximum of 2"):
        check_settings(read_options({"WORKERS_MEDIUM": "3", "AUTOSCALE": "1"}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
def test_a_stack_without_keys_is_for_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    names = ("ANONYMOUS_TENANT", "ANONYMOUS_FROM", "CONSOLE_OPEN")
    for name in names:
        monkeypatch.delenv(f"FAIRLINE_{name}", raising=False)
    reached = read_options({"FAIRLINE_HOST": host})
    for here in ("", "localhost", "127.0.0.1", "::1"):
        check_settings(read_options({"FAIRLINE_HOST": here}))
    with pytest.raises(SystemExit, match="FAIRLINE_ANONYMOUS_TENANT=demo, FAIRLINE_CONSOLE_OPEN"):
        check_settings(reached)
    # An external database needs keys by itself.
    check_settings(read_options({"FAIRLINE_HOST": host, "FAIRLINE_DATABASE_URL": "postgresql://"}))
    monkeypatch.setenv("FAIRLINE_ANONYMOUS_TENANT", "")
    with pytest.raises(SystemExit, match="FAIRLINE_CONSOLE_OPEN=true"):
        check_settings(reached)
    monkeypatch.setenv("FAIRLINE_CONSOLE_OPEN", "false")
    check_settings(reached)
    monkeypatch.delenv("FAIRLINE_ANONYMOUS_TENANT")
    with pytest.raises(SystemExit, match="FAIRLINE_ANONYMOUS_TENANT=demo"):
        check_settings(reached)
    monkeypatch.setenv("FAIRLINE_ANONYMOUS_FROM", "anywhere")
    check_settings(reached)


def test_pool_without_its_limits_is_one_line_for_each() -> None:
    missing = "fairline: FAIRLINE_POOLS: lease_seconds is missing"
    with pytest.raises(SystemExit, match=missing), exit_if_invalid("pools"):
        read_pools({"gpu": {"slots": 1, "tries": 2}})


ENDLESS = {"lease_seconds": 90, "slots": 1, "tries": 2, "above": "long"}


def test_pools_by_duration_are_a_chain_that_the_configuration_makes_longer() -> None:
    assert chain_of(read_pools({})) == ("short", "medium", "long")
    gpu = {"lease_seconds": 90, "slots": 1, "tries": 2}
    more = {"gpu": gpu, "endless": ENDLESS, "long": {"bound_seconds": 3600}}
    assert chain_of(read_pools(more)) == ("short", "medium", "long", "endless")
    assert chain_of(read_pools({"medium": {"above": None}, "long": {"above": None}})) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"endless": ENDLESS}, "endless is above long, which has no bound_seconds"),
        ({"endless": {**ENDLESS, "above": "lnog"}}, "endless is above lnog, which is no pool"),
        ({"endless": {**ENDLESS, "above": "medium"}}, "endless and long are both above medium"),
        ({"short": {"above": "long"}, "long": {"bound_seconds": 9}}, "must be one chain"),
        ({"medium": {"above": None}, "gpu": {**ENDLESS, "above": "short"}}, "must be one chain"),
    ],
)
def test_a_chain_that_is_none_is_refused_in_one_line(changes: Any, words: str) -> None:
    refused = f"fairline: FAIRLINE_POOLS: .*{words}"
    with pytest.raises(SystemExit, match=refused), exit_if_invalid("pools"):
        chain_of(read_pools(changes))
