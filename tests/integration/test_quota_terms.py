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
from tests.integration.door import Door, opened
from tests.integration.emptied import emptied
from tests.integration.house import House


@pytest.fixture
def house(api_house: House) -> House:
    return emptied(api_house)


@pytest.fixture
def door(house: House, tmp_path: Path) -> Iterator[Door]:
    with opened(house, tmp_path) as app:
        yield Door(app)


@pytest.fixture
def terminal(house: House, monkeypatch: pytest.MonkeyPatch) -> FlaskCliRunner:
    app = Flask("app", static_folder=None)
    app.cli.add_command(quotas.quotas)
    monkeypatch.setattr(quotas, "database", lambda: house.engine)
    return app.test_cli_runner()


def test_the_routes_declare_show_and_forget_a_quota(house: House, door: Door) -> None:
    key = issue_key(house.engine, None).key
    path = "/operator/quotas/claude"
    said = door.call(key, "PUT", path, {"requests_per_minute": 60}).json
    assert said["requests_per_minute"] == 60
    assert said["tokens_in_per_minute"] is None
    house.execute(
        "UPDATE quotas SET reading = %s, read_at = now(), refused = 2,"
        " closed_until = now() + interval '9 s'",
        json.dumps({"requests": [50, 49, 1.5]}),
    )
    (shown,) = door.call(key, "GET", "/operator/quotas").json["quotas"]
    assert shown["learned"] == {
        "requests": {"limit": 50, "remaining": 49, "reset_seconds": 1.5},
    }
    assert shown["closed_until"] > shown["learned_at"]
    told = door.call(None, "GET", "/metrics").text
    for line in (
        'fairline_quota_per_minute{dependency="claude",kind="requests"} 50.0',
        'fairline_quota_remaining{dependency="claude",kind="requests"} 49.0',
        'fairline_quota_closed{dependency="claude"} 1.0',
        'fairline_quota_refused_total{dependency="claude"} 2.0',
    ):
        assert line in told.splitlines()
    assert door.call(key, "DELETE", path).status_code == 204
    assert not house.query("SELECT FROM quotas WHERE requests_per_minute IS NOT NULL")


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
    house: House, door: Door, path: str, body: object, status: int
) -> None:
    key = issue_key(house.engine, None).key
    assert door.call(key, "PUT", f"/operator/quotas/{path}", body).status_code == status
    assert door.call(key, "DELETE", f"/operator/quotas/{path}%00").status_code == 404


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
