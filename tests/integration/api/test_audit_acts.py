"""Every route and command that changes something leaves its row in the audit log.

The tables below say how each is called. A new one that declares acts and is missing here fails, and
so does one whose call does not write what it declares; one that declares nothing is not built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import pytest
from flask import Flask
from sqlalchemy import Row

from app import application
from app.api.auth.access import Access, acts_of, guard, open_to
from app.cli import audit as audit_commands
from app.cli import cells, commands, keys, quotas, tenants
from app.cli.errors import FairlineCommand
from app.tenants.changes import issue_key, revoke_key
from app.tenants.scopes import Scope
from models.audit import Act, Actor, UndeclaredAct, acting
from models.jobs.ids import new_id
from models.jobs.replay_requests import ReplayRequest, create
from models.presence import Presence, announce
from tests.integration.api.test_contract import bring
from tests.support.browsing import HTML, Browser
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient

SCHEDULE = {"name": "nightly", "cron": "0 3 * * *", "timezone": "UTC", "type": "echo"}
FORM = {**SCHEDULE, "payload": "{}", "priority": "0", "overlap": "skip", "catch_up": "none"}


class World:
    """An operator, the tenant ``demo``, and what they act on."""

    def __init__(self, app: Any, database: DatabaseFixture) -> None:
        self.database = database
        self.client = HttpClient(app)
        self.operator = issue_key(database.engine, None, "of the operator")
        self.tenant = issue_key(database.engine, "demo", "of the tenant")
        self.console = Browser(app, self.operator.key, operator=True)
        self.page = Browser(app, self.tenant.key)

    def operate(self, method: str, path: str, body: Any = None) -> Any:
        return self._call(self.operator.key, method, f"/operator{path}", body)

    def use(self, method: str, path: str, body: Any = None) -> Any:
        return self._call(self.tenant.key, method, path, body)

    def _call(self, key: str, method: str, path: str, body: Any) -> Any:
        answer = self.client.call(key, method, path, body)
        assert answer.status_code < 300, answer.text
        return answer.json

    def press(self, path: str, **form: str) -> None:
        browser = self.page if path.startswith("/tenant") else self.console
        answer = browser.post(path, form)
        assert answer.status_code in (201, 303), answer.text

    def acme(self) -> None:
        if not self.database.query("SELECT 1 FROM tenants WHERE name = 'acme'"):
            self.operate("POST", "/tenants", {"name": "acme"})

    def dead(self) -> str:
        job_id = self.database.submit()
        bring(self.database, job_id, "dead")
        return job_id

    def no_room(self) -> None:
        self.database.execute(
            "INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (1, 'medium', 0)"
        )

    def replay(self) -> str:
        made = create(self.database.engine, ReplayRequest(1, (new_id(),)), 1)
        assert made is not None
        return str(made.id)

    def schedule(self) -> str:
        return str(self.use("POST", "/schedules", SCHEDULE | {"name": new_id()})["id"])

    def acts(self) -> Sequence[Row[Any]]:
        # Requests that other tests have had refused are written a moment later.
        return self.database.query(
            "SELECT * FROM audit_log WHERE what <> 'request.refuse' ORDER BY id"
        )


def replay_both(world: World, path: str, press: Callable[[str, str], None]) -> None:
    """One that has room, and one that has none."""
    press(path, world.dead())
    job_id = world.dead()
    world.no_room()
    press(path, job_id)


def quota(world: World) -> None:
    world.operate("PUT", "/quotas/claude", {"requests_per_minute": 60})


def discard(world: World, job_id: str) -> None:
    world.use("POST", "/dead-letters/discard", {"ids": [job_id]})


def worker(world: World) -> None:
    announce(world.database.engine, Presence("w1", "worker", ["medium"], slots=4))
    world.press("/console/workers/drain", worker="w1")


def tenant_forms(world: World) -> None:
    world.acme()
    world.press("/console/tenants/acme", tier="pro")
    world.press("/console/tenants/acme", act="key", label="new")


def revoke_by_form(world: World) -> None:
    key = issue_key(world.database.engine, "demo").id
    world.press(f"/console/tenants/demo/keys/{key}/revoke")


def selected(world: World) -> None:
    world.press("/console/jobs/selected", action="cancel", id=world.database.submit())
    world.press("/console/jobs/selected", action="discard", id=world.dead())
    press = lambda path, job_id: world.press(path, action="replay", id=job_id)  # noqa: E731
    replay_both(world, "/console/jobs/selected", press)


def all_that_match(world: World) -> None:
    path = "/console/jobs/all"
    world.database.submit()
    world.press(path, action="cancel", status="queued")
    world.dead()
    world.press(path, action="discard", status="dead")
    replay_both(world, path, lambda _, __: world.press(path, action="replay", status="dead"))


def resume(world: World, *_: str) -> None:
    world.acme()
    world.operate("POST", "/tenants/acme/suspend")
    world.operate("POST", "/tenants/acme/resume")


def suspend(world: World) -> None:
    world.acme()
    world.operate("POST", "/tenants/acme/suspend")


def delete(world: World) -> None:
    world.acme()
    world.operate("DELETE", "/tenants/acme")
    world.database.execute("UPDATE tenants SET name = %s WHERE name = 'acme'", f"gone-{new_id()}")


def change(world: World) -> None:
    world.acme()
    world.operate("PATCH", "/tenants/acme", {"weight": 7.0})


def create_acme(world: World) -> None:
    world.operate("POST", "/tenants", {"name": f"t-{new_id()}"})


def resubmitted(world: World) -> None:
    world.press(f"/console/jobs/{world.dead()}/resubmit", payload="{}", priority="0")


def schedule_ways(side: str) -> dict[tuple[str, str], Callable[[World], None]]:
    def on(action: str, **form: str) -> Callable[[World], None]:
        return lambda world: world.press(f"{side}/{world.schedule()}{action}", **form)

    def resumed(world: World) -> None:
        path = f"{side}/{world.schedule()}"
        world.press(f"{path}/pause")
        world.press(f"{path}/resume")

    one = f"{side}/<schedule_id>"
    return {
        ("POST", side): lambda world: world.press(side, tenant="demo", **FORM),
        ("POST", one): on("", **FORM),
        ("POST", f"{one}/remove"): on("/remove"),
        ("POST", f"{one}/run"): on("/run"),
        ("POST", f"{one}/pause"): on("/pause"),
        ("POST", f"{one}/resume"): resumed,
    }


def replay_api(world: World) -> None:
    press = lambda path, job_id: world.use("POST", path, {"ids": [job_id]})  # noqa: E731
    replay_both(world, "/dead-letters/replay", press)


def pressing(path: str, of: Callable[[World], str]) -> Callable[[World], None]:
    return lambda world: world.press(path.format(of(world)))


ROUTES: dict[tuple[str, str], Callable[[World], None]] = {
    ("POST", "/operator/tenants"): create_acme,
    ("PATCH", "/operator/tenants/<name>"): change,
    ("POST", "/operator/tenants/<name>/suspend"): suspend,
    ("POST", "/operator/tenants/<name>/resume"): resume,
    ("DELETE", "/operator/tenants/<name>"): delete,
    ("POST", "/operator/tenants/<name>/keys"): lambda world: world.operate(
        "POST", "/tenants/demo/keys", {"name": "label"}
    ),
    ("DELETE", "/operator/keys/<key_id>"): lambda world: world.operate(
        "DELETE", f"/keys/{issue_key(world.database.engine, 'demo').id}"
    ),
    ("PUT", "/operator/quotas/<dependency>"): quota,
    ("DELETE", "/operator/quotas/<dependency>"): lambda world: (
        quota(world),
        world.operate("DELETE", "/quotas/claude"),
    )[0],
    ("POST", "/operator/applications/<application_id>/erase"): lambda world: world.operate(
        "POST", f"/applications/{world.database.submit_application()}/erase"
    ),
    ("POST", "/applications/<application_id>/erase"): lambda world: world.use(
        "POST", f"/applications/{world.database.submit_application()}/erase"
    ),
    ("GET", "/applications/<application_id>/export"): lambda world: world.use(
        "GET", f"/applications/{world.database.submit_application()}/export"
    ),
    ("POST", "/dead-letters/replay"): replay_api,
    ("POST", "/dead-letters/discard"): lambda world: discard(world, world.dead()),
    ("DELETE", "/dead-letters/replays/<replay_id>"): lambda world: world.use(
        "DELETE", f"/dead-letters/replays/{world.replay()}"
    ),
    ("POST", "/schedules"): lambda world: world.use("POST", "/schedules", SCHEDULE),
    ("PATCH", "/schedules/<schedule_id>"): lambda world: world.use(
        "PATCH", f"/schedules/{world.schedule()}", {"priority": 3}
    ),
    ("DELETE", "/schedules/<schedule_id>"): lambda world: world.use(
        "DELETE", f"/schedules/{world.schedule()}"
    ),
    ("POST", "/schedules/<schedule_id>/run"): lambda world: world.use(
        "POST", f"/schedules/{world.schedule()}/run"
    ),
    ("POST", "/console/tenants"): lambda world: world.press(
        "/console/tenants", name=f"t-{new_id()}", tier="standard"
    ),
    ("POST", "/console/tenants/<name>"): tenant_forms,
    ("POST", "/console/tenants/<name>/keys/<key_id>/revoke"): revoke_by_form,
    ("POST", "/console/jobs/<job_id>/cancel"): pressing(
        "/console/jobs/{}/cancel", lambda world: world.database.submit()
    ),
    ("POST", "/console/jobs/<job_id>/discard"): pressing("/console/jobs/{}/discard", World.dead),
    ("POST", "/console/jobs/<job_id>/replay"): lambda world: replay_both(
        world, "", lambda _, job_id: world.press(f"/console/jobs/{job_id}/replay")
    ),
    ("POST", "/console/jobs/selected"): selected,
    ("POST", "/console/jobs/all"): all_that_match,
    ("POST", "/console/jobs/<job_id>/resubmit"): resubmitted,
    ("POST", "/console/leaderboard"): lambda world: world.press(
        "/console/leaderboard", tenant="demo", candidate="Zaphod", application="Two heads."
    ),
    ("POST", "/console/replays/<replay_id>/cancel"): pressing(
        "/console/replays/{}/cancel", World.replay
    ),
    ("POST", "/console/workers/drain"): worker,
    ("POST", "/console/sign-in"): lambda world: world.press(
        "/console/sign-in", key=world.operator.key
    ),
    ("POST", "/tenant/dead-letters/replay"): lambda world: replay_both(
        world, "/tenant/dead-letters/replay", lambda path, job_id: world.press(path, id=job_id)
    ),
    ("POST", "/tenant/dead-letters/discard"): lambda world: world.press(
        "/tenant/dead-letters/discard", id=world.dead()
    ),
    ("POST", "/tenant/replays/<replay_id>/cancel"): pressing(
        "/tenant/replays/{}/cancel", World.replay
    ),
    **schedule_ways("/console/schedules"),
    **schedule_ways("/tenant/schedules"),
}
#: With a provider, in ``tests/integration/console/oidc/test_sign_in.py``.
ROUTES_ELSEWHERE = {("GET", "/console/oidc/callback")}
#: What is everyday use of a tenant, or changes nothing that is stored.
NO_ACTS = {
    ("POST", "/applications"),
    ("DELETE", "/applications/<application_id>"),
    ("POST", "/jobs"),
    ("POST", "/jobs/batch"),
    ("DELETE", "/jobs/<string(length=36):job_id>"),
    ("POST", "/tenant/jobs/<job_id>/resubmit"),
    ("POST", "/console/sign-out"),
}
#: Commands by their line; what they need is made by those before.
COMMANDS = {
    "tenants create": ["tenants create acme-2"],
    "tenants set": ["tenants set demo --weight 3"],
    "tenants ensure": ["tenants ensure acme-3"],
    "tenants suspend": ["tenants suspend other"],
    "tenants resume": ["tenants suspend other", "tenants resume other"],
    "tenants delete": ["tenants ensure acme-4", "tenants delete acme-4 --yes"],
    "keys issue": ["keys issue --operator --name ops"],
    "keys revoke": ["keys revoke {key}"],
    "quotas set": ["quotas set claude --requests 60"],
    "quotas clear": ["quotas set claude --requests 60", "quotas clear claude"],
}
#: Migrations are tested with the others; a replay is one of the tests below.
ELSEWHERE = {
    *("migrate", "replay", "encryption rotate"),
    *(
        "cells add",
        "cells drain",
        "cells promote",
        "cells remove",
        "tenants move",
        "tenants spread",
    ),
}


@pytest.fixture
def world(operator: Browser, database: DatabaseFixture) -> Iterator[World]:
    made = World(operator.app, database)
    yield made
    database.execute("DELETE FROM tenant_limits")
    database.execute("UPDATE tenants SET suspended_at = NULL, weight = NULL")


def routes_of(app: Flask) -> Iterator[tuple[tuple[str, str], tuple[Act, ...] | None]]:
    for rule in app.url_map.iter_rules():
        acts = acts_of(app.view_functions[rule.endpoint])
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            yield (method, rule.rule), None if acts is None else tuple(acts)


def test_every_route_with_acts_is_called_below(operator: Browser) -> None:
    declared = dict(routes_of(operator.app))
    assert {way for way, acts in declared.items() if acts} == {*ROUTES, *ROUTES_ELSEWHERE}
    assert {way for way, acts in declared.items() if acts == ()} == NO_ACTS
    assert {way[0] for way, acts in declared.items() if acts is None} == {"GET"}


@pytest.mark.parametrize("way", ROUTES, ids=" ".join)
def test_a_route_leaves_a_row_of_each_act_that_it_declares(
    world: World, way: tuple[str, str]
) -> None:
    declared = dict(routes_of(world.client.app))[way]
    assert declared is not None
    ROUTES[way](world)
    rows = [row for row in world.acts() if row.what in declared]
    assert {row.what for row in rows} == set(declared)
    for row in rows:
        tenant = way[1].startswith("/tenant") or (row.via == "api" and row.role == "tenant")
        key = world.tenant if tenant else world.operator
        assert (row.who, row.role) == (key.id, "tenant" if tenant else "operator")
        assert row.who_name in ("of the operator", "of the tenant")
        assert row.via == ("console" if way[1].startswith(("/console", "/tenant")) else "api")
        assert row.address == "127.0.0.1" and row.request_id
        assert row.tenant or row.what.startswith(("quota.", "worker.", "session."))
    everything = "".join(map(str, world.acts()))
    assert "Zaphod" not in everything and "Two heads" not in everything
    assert world.operator.key not in everything and world.tenant.key not in everything


def test_a_route_without_declared_acts_is_not_built() -> None:
    app = Flask("forgotten", static_folder=None)
    app.add_url_rule("/x", "x", open_to(Access.OPERATOR, Scope.READ)(lambda: ""), methods=["POST"])
    with pytest.raises(UndeclaredAct, match=r"^x: "):
        guard(app)
    app.view_functions["x"] = open_to(Access.OPERATOR, Scope.READ, acts=())(lambda: "")
    guard(app)


def test_what_an_entry_point_does_not_declare_is_not_changed(database: DatabaseFixture) -> None:
    key = issue_key(database.engine, "demo").id
    actor = Actor("api", "somebody", "operator", (Act.KEY_ISSUE,))
    with pytest.raises(UndeclaredAct), acting(actor):
        revoke_key(database.engine, key)
    [row] = database.query("SELECT revoked_at FROM api_keys WHERE id = %s", key)
    assert row.revoked_at is None


def test_a_change_whose_row_cannot_be_written_is_not_made(world: World) -> None:
    key = issue_key(world.database.engine, "demo").id
    world.database.execute("ALTER TABLE audit_log ADD CONSTRAINT full_disk CHECK (id < 0)")
    try:
        path = f"/operator/keys/{key}"
        assert world.client.call(world.operator.key, "DELETE", path).status_code == 500
    finally:
        world.database.execute("ALTER TABLE audit_log DROP CONSTRAINT full_disk")
    [row] = world.database.query("SELECT revoked_at FROM api_keys WHERE id = %s", key)
    assert row.revoked_at is None and not world.acts()


def test_what_changes_nothing_leaves_no_row(world: World) -> None:
    world.operate("PATCH", "/tenants/demo", {"tier": "standard"})
    world.operate("POST", "/tenants/demo/resume")
    assert world.client.call(world.operator.key, "DELETE", "/operator/keys/abcd1234").status == (
        "404 NOT FOUND"
    )
    refused = world.console.post("/console/tenants", {"name": "Not a name"}, HTML)
    assert refused.status_code == 422
    assert not world.acts()


def test_a_row_has_what_changed_and_nothing_else(world: World) -> None:
    world.operate("PATCH", "/tenants/demo", {"weight": 7.0, "limits": {"long": {"depth": 5}}})
    [row] = world.acts()
    limits = {"in_flight": None, "reserved": None, "depth": 5}
    assert (row.what, row.target, row.tenant) == ("tenant.change", "demo", "demo")
    assert row.before == {"weight": None, "limits": {}}
    assert row.after == {"weight": 7.0, "limits": {"long": limits}}


def test_a_payload_is_not_in_the_log(world: World) -> None:
    path = f"/schedules/{world.schedule()}"
    world.use("PATCH", path, {"payload": {"candidate": "Zaphod"}})
    assert world.acts()[-1].after == {"payload": "(changed)"}
    world.use("DELETE", path)
    assert world.acts()[-1].what == "schedule.remove"
    assert "Zaphod" not in "".join(map(str, world.acts()))


def test_an_erased_application_leaves_its_id_alone(world: World) -> None:
    job_id = world.database.submit_application("Zaphod Beeblebrox")
    world.use("GET", f"/applications/{job_id}/export")
    for _ in range(2):
        world.use("POST", f"/applications/{job_id}/erase")
    rows = world.acts()
    assert [row.what for row in rows] == ["application.export", "application.erase"]
    assert all(row.target == job_id and row.before is row.after is None for row in rows)
    assert "Zaphod" not in "".join(map(str, rows))


def test_the_limits_of_a_new_key_are_in_the_log(world: World) -> None:
    limits = {"scopes": ["read"], "expires_at": "2099-01-01T00:00:00Z"}
    world.operate("POST", "/tenants/demo/keys", {"name": "label", **limits})
    given = {"name": "label", "scopes": ["read"], "expires_at": "2099-01-01T00:00:00+00:00"}
    assert world.acts()[-1].after == given


def test_many_jobs_are_one_row_a_tenant(world: World) -> None:
    mine = [world.database.submit() for _ in range(3)]
    [other] = world.database.query("SELECT id FROM tenants WHERE name = 'other'")
    theirs = world.database.submit(tenant_id=other.id)
    world.press("/console/jobs/all", action="cancel", status="queued")
    rows = {row.tenant: row for row in world.acts()}
    assert rows["demo"].after["jobs"] == 3 and set(rows["demo"].after["ids"]) == set(mine)
    assert rows["other"].target == theirs and rows["other"].after is None


def walk(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from walk(each, f"{name} {each.name}".strip())
    else:
        yield name, command


def test_every_command_declares_its_acts() -> None:
    ours = {
        name: command
        for name, command in walk(application.cli)
        if command.callback is not None and command.callback.__module__.startswith("app.")
    }
    assert {"tenants create", "migrate", "audit export"} <= set(ours)
    for name, command in ours.items():
        assert isinstance(command, FairlineCommand), name
        assert bool(command.acts) is (name in COMMANDS or name in ELSEWHERE), name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_a_row(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tenants, keys, quotas, commands, audit_commands, cells):
        monkeypatch.setattr(module, "database", lambda: world.database.engine)
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    runner = application.test_cli_runner()
    for line in COMMANDS[name]:
        result = runner.invoke(args=line.format(key=world.tenant.id).split())
        assert result.exit_code == 0, result.output
    command = dict(walk(application.cli))[name]
    assert isinstance(command, FairlineCommand)
    row = world.acts()[-1]
    assert (row.what,) == tuple(command.acts)
    assert (row.via, row.who, row.who_name, row.role) == ("command line", "root", None, "operator")
    assert row.address and row.request_id is None


def test_dead_letters_replayed_by_a_command_are_in_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "database", lambda: world.database.engine)
    job_id = world.dead()
    result = application.test_cli_runner().invoke(args=["replay", "--yes"])
    assert result.exit_code == 0, result.output
    [row] = world.acts()
    assert (row.what, row.target, row.tenant) == ("job.replay", job_id, "demo")
