"""Quotas as operators set and see them: the command line, the routes, the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskCliRunner

from app.cli import quotas
from app.tenants.changes import issue_key
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.http_client import HttpClient, opened


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def http_client(database: DatabaseFixture, tmp_path: Path) -> Iterator[HttpClient]:
    with opened(database, tmp_path) as app:
        yield HttpClient(app)


@pytest.fixture
def terminal(database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch) -> FlaskCliRunner:
    app = Flask("app", static_folder=None)
    app.cli.add_command(quotas.quotas)
    monkeypatch.setattr(quotas, "database", lambda: database.engine)
    return app.test_cli_runner()


def test_the_routes_declare_show_and_forget_a_quota(
    database: DatabaseFixture, http_client: HttpClient
) -> None:
    key = issue_key(database.engine, None).key
    path = "/operator/quotas/claude"
    said = http_client.call(key, "PUT", path, {"requests_per_minute": 60}).json
    assert said["requests_per_minute"] == 60
    assert said["tokens_in_per_minute"] is None
    database.execute(
        "UPDATE quotas SET reading = %s, read_at = now(), refused = 2,"
        " closed_until = now() + interval '9 s'",
        json.dumps({"requests": [50, 49, 1.5]}),
    )
    (shown,) = http_client.call(key, "GET", "/operator/quotas").json["quotas"]
    assert shown["learned"] == {
        "requests": {"limit": 50, "remaining": 49, "reset_seconds": 1.5},
    }
    assert shown["closed_until"] > shown["learned_at"]
    told = http_client.call(None, "GET", "/metrics").text
    for line in (
        'fairline_quota_per_minute{dependency="claude",kind="requests"} 50.0',
        'fairline_quota_remaining{dependency="claude",kind="requests"} 49.0',
        'fairline_quota_closed{dependency="claude"} 1.0',
        'fairline_quota_refused_total{dependency="claude"} 2.0',
    ):
        assert line in told.splitlines()
    assert http_client.call(key, "DELETE", path).status_code == 204
    assert not database.query("SELECT FROM quotas WHERE requests_per_minute IS NOT NULL")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("claude", {}, 422),
        ("claude", {"requests_per_minute": -1}, 422),
        ("claude", {"requests_per_minute": "many"}, 422),
        ("claude", {"requests_per_hour": 1}, 422),
        ("cluade", {"requests_per_minute": 1}, 404),
    ],
)
def test_what_makes_no_sense_is_refused(
    database: DatabaseFixture, http_client: HttpClient, path: str, body: object, status: int
) -> None:
    key = issue_key(database.engine, None).key
    assert http_client.call(key, "PUT", f"/operator/quotas/{path}", body).status_code == status
    assert http_client.call(key, "DELETE", f"/operator/quotas/{path}%00").status_code == 404


def test_the_command_line_declares_lists_and_clears(terminal: FlaskCliRunner) -> None:
    done = terminal.invoke(
        args=["quotas", "set", "claude", "--requests", "60", "--tokens-in", "40000"]
    )
    assert done.exit_code == 0, done.output
    listed = terminal.invoke(args=["quotas", "list"]).output
    assert listed.splitlines()[1].split()[:3] == ["claude", "60", "40000"]
    assert terminal.invoke(args=["quotas", "clear", "claude"]).exit_code == 0
    refused = terminal.invoke(args=["quotas", "clear", "other"])
    assert (refused.exit_code, "There is no quota" in refused.output) == (1, True)
    wrong = terminal.invoke(args=["quotas", "set", "cluade", "--requests", "60"])
    assert "No job type depends on 'cluade'" in wrong.output


def test_clearing_a_quota_says_what_was_removed(
    database: DatabaseFixture, terminal: FlaskCliRunner
) -> None:
    def clear() -> str:
        done = terminal.invoke(args=["quotas", "clear", "claude"])
        assert done.exit_code == 0, done.output
        return done.output

    terminal.invoke(args=["quotas", "set", "claude", "--requests", "60"])
    database.execute(
        "UPDATE quotas SET reading = %s, closed_until = now() + interval '9 minutes'",
        json.dumps({"tokens": [9, 8, 7]}),
    )
    said = clear()
    assert "claude: removed the declared limit of 60 requests per minute" in said
    assert "forgot the reported limit of 9 tokens" in said
    assert "called again within 2.5 s" in said
    database.execute("UPDATE quotas SET closed_until = NULL")
    assert "claude: nothing was declared or reported" in clear()
