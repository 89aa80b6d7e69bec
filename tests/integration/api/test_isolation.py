"""No tenant sees or changes what is another's: every route, with a foreign id and a wrong key.

Every route of the application has to stand in the table of ``routes``, or a test fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from werkzeug.test import TestResponse

from app.api.auth.access import access_of
from app.api.auth.visitors import OPERATOR_COOKIE, TENANT_COOKIE
from app.api.services import Services
from app.server.wsgi import FairlineApp
from app.telemetry.requests import Requests
from app.telemetry.sdk import Sdk
from app.telemetry.tracing import Tracing
from app.tenants.changes import create_tenant, issue_key, revoke_key
from app.tenants.keys import new_key
from loadtest.attack.corpus.routes import (
    APPLICATION,
    CALLS,
    CONSOLE,
    OPERATOR,
    PUBLIC,
    SCHEDULE,
    TENANT,
    TENANT_PAGE,
    THINGS,
    Call,
)
from models.jobs.ids import new_id
from models.jobs.replay_requests import ReplayRequest, create
from tests.integration.api.test_contract import bring, put_scored
from tests.support.browsing import session_of_key
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient, opened

EACH = [(route, call) for route, calls in CALLS.items() for call in calls]
GUARDED = [(route, call) for route, call in EACH if call.access is not PUBLIC]
#: Rows of one tenant, wherever it has some.
OWN_TABLES = (
    *("jobs", "applications", "schedules", "idempotency_keys", "api_keys", "tenant_limits"),
    *("replays", "erasures"),
)


def method_of(route: str) -> str:
    return route.partition(" ")[0]


def names(of: Sequence[tuple[str, Call]]) -> list[str]:
    return [f"{method_of(route)} {call.path}" for route, call in of]


class Knocking(HttpClient):
    """A client that makes the calls of the table."""

    def __init__(self, app: FairlineApp) -> None:
        super().__init__(app)
        self._browser = app.test_client(use_cookies=False)

    def knock(self, key: str | None, route: str, call: Call, **ids: str) -> TestResponse:
        """Call a route; ids that are not given do not exist."""
        if call.form is not None:
            header = {"Authorization": f"Bearer {key}"} if key is not None else {}
            return self.browse(header, route, call, **ids)
        path, body, _ = call.filled({thing: ids.get(thing, new_id()) for thing in THINGS})
        return self.call(key, method_of(route), path, body)

    def browse(
        self, headers: Mapping[str, str], route: str, call: Call, **ids: str
    ) -> TestResponse:
        """Call a page as a browser does: a form is a form, and cookies are what it is given."""
        path, _, form = call.filled({thing: ids.get(thing, new_id()) for thing in THINGS})
        answer = self._browser.open(path, method=method_of(route), headers=dict(headers), data=form)
        if answer.mimetype == "text/event-stream":
            answer.close()  # it would go on
        return answer


@dataclass(frozen=True, slots=True)
class People:
    """The callers' keys."""

    acme: str
    outlander: str
    operator: str
    revoked: str


@pytest.fixture(scope="module")
def people(api_database: DatabaseFixture) -> People:
    engine = api_database.engine
    for name in ("acme", "outlander"):
        create_tenant(engine, name)
    keys = [issue_key(engine, name) for name in ("acme", "outlander", None, "acme")]
    revoke_key(engine, keys[3].id)
    return People(*[issued.key for issued in keys])


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Knocking]:
    """A default deployment: a key is required."""
    with opened(api_database, tmp_path_factory.mktemp("blobs")) as app:
        yield Knocking(app)


@pytest.fixture(scope="module")
def open_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    """The embedded stack: callers without a key are the tenant demo."""
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        yield HttpClient(app)


class Foreign:
    """Resources of the tenant ``outlander``, created on first use."""

    def __init__(self, http_client: HttpClient, people: People, database: DatabaseFixture) -> None:
        self._client, self._people, self._database = http_client, people, database
        self.ids: dict[str, str] = {}
        rows = database.query("SELECT id FROM tenants WHERE name = 'outlander'")
        self.tenant_id: int = rows[0][0]

    def made(self, *things: str) -> dict[str, str]:
        """The ids of these resources, and of all created before."""
        for thing in things:
            if thing not in self.ids:
                self.ids[thing] = self._make(thing)
        return self.ids

    def needed_by(self, call: Call) -> dict[str, str]:
        """The resources in a call."""
        return self.made(
            *[thing for thing in THINGS if f"{{{thing}}}" in f"{call.path}{call.body}{call.form}"]
        )

    def rows(self) -> set[str]:
        """All its data, as text."""
        tables = [
            self._database.query(
                # When its keys were used is written in the background, while it makes no call.
                f"SELECT (to_jsonb(t) - 'last_used_at')::text FROM {table} AS t"
                f" WHERE tenant_id = {self.tenant_id}"
            )
            for table in OWN_TABLES
        ]
        return {row[0] for table in tables for row in table}

    def _make(self, thing: str) -> str:
        if thing == "scored":
            scored = put_scored(self._database, "general", "88", tenant_id=self.tenant_id)
            self._database.execute("UPDATE jobs SET result = '{}' WHERE id = %s", scored)
            return scored
        if thing == "replay":
            asked = ReplayRequest(self.tenant_id, type=new_id())
            return str(create(self._database.engine, asked, 1).id)
        path, body = {
            "application": ("/applications", APPLICATION),
            "schedule": ("/schedules", SCHEDULE | {"name": new_id()}),
        }.get(thing, ("/jobs", {"type": "echo"}))
        answer = self._client.call(self._people.outlander, "POST", path, body)
        assert answer.status_code in (201, 202), answer.text
        made = str(answer.json["id"])  # type: ignore[index]  # it is JSON
        if thing == "dead":
            bring(self._database, made, "dead")
        return made


@pytest.fixture(scope="module")
def foreign(http_client: Knocking, people: People, api_database: DatabaseFixture) -> Foreign:
    """One of each resource, not to be changed."""
    everything = Foreign(http_client, people, api_database)
    everything.made(*THINGS)
    return everything


@pytest.fixture
def fresh(http_client: Knocking, people: People, api_database: DatabaseFixture) -> Foreign:
    """Resources that their owner may change."""
    return Foreign(http_client, people, api_database)


def assert_refused(answer: TestResponse, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.mimetype == "application/problem+json"
    assert answer.json["code"] == code  # type: ignore[index]  # it is JSON
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_every_route_stands_in_the_table_as_it_is_declared(http_client: Knocking) -> None:
    declared = {
        f"{method} {rule.rule}": access_of(http_client.app.view_functions[rule.endpoint])
        for rule in http_client.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert declared == {route: calls[0].access for route, calls in CALLS.items()}


@pytest.mark.parametrize(("route", "call"), GUARDED, ids=names(GUARDED))
def test_without_a_valid_key_no_door_opens(
    http_client: Knocking, people: People, route: str, call: Call
) -> None:
    short, long = people.acme.split("_")[1:]
    wrong = {
        "none": None,
        "unknown": new_key(),
        "another secret": f"fair_{short}_{long[::-1]}",
        "revoked": people.revoked,
        "malformed": people.acme[:-1],
    }
    for key in wrong.values():
        assert_refused(http_client.knock(key, route, call), 401, "UNAUTHENTICATED")
    for header in ("", "Bearer", "Basic YTpi", people.acme):
        path = call.path.format(**dict.fromkeys(THINGS, new_id()))
        answer = http_client.open(method_of(route), path, {"Authorization": header}, call.body)
        assert_refused(answer, 401, "UNAUTHENTICATED")


@pytest.mark.parametrize(("route", "call"), GUARDED, ids=names(GUARDED))
def test_a_key_opens_its_own_side_of_the_house_only(
    http_client: Knocking, people: People, route: str, call: Call
) -> None:
    wrong = people.acme if call.access in (OPERATOR, CONSOLE) else people.operator
    assert_refused(http_client.knock(wrong, route, call), 403, "FORBIDDEN")


FOREIGN = [(route, call) for route, call in GUARDED if call.access in (TENANT, TENANT_PAGE)]


@pytest.mark.parametrize(("route", "call"), FOREIGN, ids=names(FOREIGN))
def test_a_stranger_neither_sees_nor_changes_anything(
    http_client: Knocking, people: People, foreign: Foreign, route: str, call: Call
) -> None:
    before = foreign.rows()
    answer = http_client.knock(people.acme, route, call, **foreign.ids)
    assert answer.status_code == call.stranger, answer.text
    if call.stranger == 404:
        assert_refused(answer, 404, "NOT_FOUND")
        nothing = http_client.knock(
            people.acme, route, call
        )  # an id that nobody has looks the same
        assert (nothing.status_code, nothing.data) == (answer.status_code, answer.data)
    if answer.mimetype in ("application/json", "text/html"):
        for text in (*foreign.ids.values(), "Foreigner", "outlander"):
            assert text not in answer.text
    assert not foreign.rows() ^ before


BY_ID = [(route, call) for route, call in FOREIGN if call.stranger == 404]


@pytest.mark.parametrize(("route", "call"), BY_ID, ids=names(BY_ID))
def test_the_owner_is_served_by_the_same_call(
    http_client: Knocking, people: People, fresh: Foreign, route: str, call: Call
) -> None:
    ids = fresh.needed_by(call)
    served = (200, 202, 204) if call.form is None else (303,)
    assert http_client.knock(people.outlander, route, call, **ids).status_code in served
    if route.startswith("GET"):
        head = route.replace("GET", "HEAD")
        assert http_client.knock(people.acme, head, call, **ids).status_code == 404
        assert http_client.knock(None, head, call, **ids).status_code == 401


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/jobs", "job"),
        ("/jobs?status=dead", "dead"),
        ("/dead-letters", "dead"),
        ("/schedules", "schedule"),
        ("/leaderboard", "scored"),
    ],
)
def test_the_owner_finds_its_own_in_the_same_lists(
    http_client: Knocking, people: People, foreign: Foreign, path: str, text: str
) -> None:
    answer = http_client.call(people.outlander, "GET", path)
    assert foreign.ids[text] in answer.text


def test_the_owner_replays_what_a_stranger_cannot(
    http_client: Knocking, people: People, fresh: Foreign
) -> None:
    route = "POST /dead-letters/replay"
    call = CALLS[route][0]
    ids = fresh.needed_by(call)
    for key, replayed in ((people.acme, 0), (people.outlander, 1)):
        assert http_client.knock(key, route, call, **ids).json["replayed"] == replayed  # type: ignore[index]


OPEN = [(route, call) for route, call in EACH if call.access in (OPERATOR, CONSOLE)]


@pytest.mark.parametrize(("route", "call"), OPEN, ids=names(OPEN))
def test_an_operator_is_served(
    http_client: Knocking, people: People, route: str, call: Call
) -> None:
    assert http_client.knock(people.operator, route, call).status_code == call.stranger


PROBES = [(route, call) for route, call in EACH if call.access is PUBLIC]


@pytest.mark.parametrize(("route", "call"), PROBES, ids=names(PROBES))
def test_probes_need_no_key_and_name_no_tenant(
    http_client: Knocking, people: People, foreign: Foreign, route: str, call: Call
) -> None:
    answer = http_client.knock(None, route, call)
    assert answer.status_code == call.stranger
    for name in ("acme", "outlander", "demo", *foreign.ids.values()):
        assert name not in answer.text


PAGES = [(route, call) for route, call in EACH if call.access in (CONSOLE, TENANT_PAGE)]
HTML = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}


def with_key(http_client: Knocking, call: Call, key: str) -> dict[str, str]:
    """A browser with a session of this key in the page's cookie."""
    return with_token(call, session_of_key(http_client.app, key))


def with_token(call: Call, token: str) -> dict[str, str]:
    """A browser with this in the page's cookie."""
    cookie = OPERATOR_COOKIE if call.access is CONSOLE else TENANT_COOKIE
    return {**HTML, "Cookie": f"{cookie}={token}"}


@pytest.mark.parametrize(("route", "call"), PAGES, ids=names(PAGES))
def test_a_browser_without_a_valid_key_is_asked_to_sign_in(
    http_client: Knocking, people: People, foreign: Foreign, route: str, call: Call
) -> None:
    right = people.operator if call.access is CONSOLE else people.outlander
    other = TENANT_COOKIE if call.access is CONSOLE else OPERATOR_COOKIE
    before = foreign.rows()
    for headers in (
        HTML,
        with_key(http_client, call, people.revoked),
        with_key(http_client, call, new_key()),
        with_token(call, "nonsense"),
        with_token(call, secrets.token_urlsafe(32)),
        # The key itself is no session.
        with_token(call, right),
        # The session of whoever may, in the cookie of the other kind of page.
        {**HTML, "Cookie": f"{other}={session_of_key(http_client.app, right)}"},
    ):
        answer = http_client.browse(headers, route, call, **foreign.ids)
        assert answer.status_code == 303, answer.text
        assert answer.headers["Location"].startswith("/console/sign-in?next=")
    assert not foreign.rows() ^ before


@pytest.mark.parametrize(("route", "call"), PAGES, ids=names(PAGES))
def test_a_cookie_opens_its_own_side_of_the_house_only(
    http_client: Knocking, people: People, foreign: Foreign, route: str, call: Call
) -> None:
    wrong = people.outlander if call.access is CONSOLE else people.operator
    answer = http_client.browse(with_key(http_client, call, wrong), route, call, **foreign.ids)
    assert answer.status_code == 403
    assert answer.mimetype == "text/html"
    assert "outlander" not in answer.text.replace(call.path, "")


OWN_PAGES = [(route, call) for route, call in PAGES if call.access is TENANT_PAGE]


@pytest.mark.parametrize(("route", "call"), OWN_PAGES, ids=names(OWN_PAGES))
def test_a_signed_in_stranger_neither_sees_nor_changes_anything(
    http_client: Knocking, people: People, foreign: Foreign, route: str, call: Call
) -> None:
    before = foreign.rows()
    answer = http_client.browse(
        with_key(http_client, call, people.acme), route, call, **foreign.ids
    )
    assert answer.status_code == call.stranger, answer.text
    asked = call.path.format(**foreign.ids)  # which an error offers to try again
    for text in (*foreign.ids.values(), "Foreigner", "outlander"):
        assert answer.mimetype == "text/event-stream" or text not in answer.text.replace(asked, "")
    assert not foreign.rows() ^ before


@pytest.mark.parametrize(("route", "call"), PAGES, ids=names(PAGES))
def test_who_is_signed_in_is_served(
    http_client: Knocking, people: People, fresh: Foreign, route: str, call: Call
) -> None:
    right = people.operator if call.access is CONSOLE else people.outlander
    ids = fresh.needed_by(call)
    answer = http_client.browse(with_key(http_client, call, right), route, call, **ids)
    # Of a tenant's page that names something, a stranger hears something else.
    owned = call.access is TENANT_PAGE and bool(ids)
    usual = (200, 303) if owned else (200, 303, call.stranger)
    assert answer.status_code in usual, answer.text
    assert not answer.headers.get("Location", "").startswith("/console/sign-in")


CHANGING = [(route, call) for route, call in PAGES if not route.startswith("GET")]


@pytest.mark.parametrize(("route", "call"), CHANGING, ids=names(CHANGING))
def test_a_form_of_another_site_changes_nothing(
    http_client: Knocking, people: People, foreign: Foreign, route: str, call: Call
) -> None:
    right = people.operator if call.access is CONSOLE else people.outlander
    before = foreign.rows()
    for site in ("cross-site", "same-site", "none"):
        headers = {**with_key(http_client, call, right), "Sec-Fetch-Site": site}
        assert http_client.browse(headers, route, call, **foreign.ids).status_code == 403
    assert not foreign.rows() ^ before


def test_an_idempotency_key_is_its_tenants_own(http_client: Knocking, people: People) -> None:
    ids = []
    for key in (people.acme, people.outlander, people.acme):
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "the same"}
        answer = http_client.open("POST", "/jobs", headers, {"type": "echo"})
        ids.append(answer.json["id"])  # type: ignore[index]  # it is JSON
    assert ids[0] == ids[2] != ids[1]


def test_whoever_has_no_key_is_demo_where_the_stack_says_so(
    open_client: HttpClient, people: People, api_database: DatabaseFixture
) -> None:
    assert open_client.open("GET", "/tenant", {}).json["name"] == "demo"  # type: ignore[index]
    made = open_client.open("POST", "/jobs", {}, {"type": "echo"})
    assert api_database.job(made.json["id"]).tenant_id == 1  # type: ignore[index]  # it is JSON
    acme = open_client.call(people.acme, "GET", "/tenant")
    assert acme.json["name"] == "acme"  # type: ignore[index]  # it is JSON


def test_a_wrong_key_is_not_the_same_as_none(open_client: HttpClient, people: People) -> None:
    for key in (people.revoked, new_key(), "fair_x_y", ""):
        answer = open_client.call(key, "GET", "/tenant")
        assert_refused(answer, 401, "UNAUTHENTICATED")
    assert_refused(open_client.open("GET", "/operator/tenants", {}), 401, "UNAUTHENTICATED")


def test_a_caller_cannot_say_who_it_is_by_a_header(http_client: Knocking) -> None:
    answer = http_client.open(
        "GET", "/tenant", {"fairline.caller": "acme", "Fairline-Caller": "acme"}
    )
    assert_refused(answer, 401, "UNAUTHENTICATED")


def test_traced_requests_pass_the_same_door(
    http_client: Knocking, people: People, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = TracerProvider()
    sdk = Sdk(traces, MeterProvider(), Tracing(traces, SimpleSpanProcessor(InMemorySpanExporter())))
    traced = Requests(sdk, http_client.app)
    monkeypatch.setattr(http_client.app, "traced", traced)
    route = "GET /jobs/<string(length=36):job_id>"
    call = CALLS[route][0]
    assert_refused(http_client.knock(None, route, call, **foreign.ids), 401, "UNAUTHENTICATED")
    assert_refused(http_client.knock(people.acme, route, call, **foreign.ids), 404, "NOT_FOUND")
    assert http_client.knock(people.outlander, route, call, **foreign.ids).status_code == 200


def test_a_stream_ends_when_its_key_is_revoked(
    http_client: Knocking, api_database: DatabaseFixture, foreign: Foreign
) -> None:
    database: Services = http_client.app.extensions["fairline"]
    key = issue_key(api_database.engine, "outlander")
    header = {"HTTP_AUTHORIZATION": f"Bearer {key.key}"}
    caller = database.tenants.caller(header)
    assert caller.tenant is not None
    feed = database.events.open_feed(caller.tenant.id, None, key=caller.key)
    job = database.events.open_job(caller.tenant.id, foreign.ids["job"], None, key=caller.key)
    assert job is not None
    for stream in (feed, job):
        next(stream)
    revoke_key(api_database.engine, key.id)
    database.tenants.directory.refresh()
    # Ends, after what was waiting; a stream that goes on would time the test out.
    assert len(list(feed)) <= 1 and len(list(job)) <= 1
    assert database.events.count == 0
