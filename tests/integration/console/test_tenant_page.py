"""A tenant's own page: its figures, its jobs, its dead letters, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from app.api.services import Services
from app.console.live import MOST_OF_TENANT
from app.console.page import LIVE_PAGES, PageRequest
from app.console.tenant_page import flow as tenant_page_flow
from app.console.tenant_page import page as tenant_page
from app.errors import TooManyStreams
from app.reads.search import id_before
from app.tenants.changes import create_tenant, issue_key, revoke_key
from app.tenants.tenant import TenantProfile
from models.jobs.ids import ABOVE_ALL, new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.pools import POOLS
from tests.support.browsing import Browser, cells, text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import KEPT, emptied
from tests.support.http_client import HttpClient, opened
from tests.support.plans import assert_walks, plan_of

PAGE, JOB = "/tenant", "/tenant/jobs/<job_id>"
REPLAY = "/tenant/dead-letters/replay"
DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{"said": "<i>hello</i>"}')
FAILED = Ending(
    JobStatus.DEAD, 1, error_class=FailureClass.POISON, error_message="<script>alert(1)</script>"
)


@pytest.fixture(scope="module")
def acme(api_database: DatabaseFixture) -> TenantProfile:
    return create_tenant(api_database.engine, "acme")


@pytest.fixture(scope="module")
def rival(api_database: DatabaseFixture) -> TenantProfile:
    return create_tenant(api_database.engine, "rival")


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        yield HttpClient(app)


@pytest.fixture(scope="module")
def key(api_database: DatabaseFixture, acme: TenantProfile) -> str:
    return issue_key(api_database.engine, "acme", KEPT).key


@pytest.fixture(scope="module")
def browser(http_client: HttpClient, key: str) -> Browser:
    return Browser(http_client.app, key)


@pytest.fixture
def database(api_database: DatabaseFixture, browser: Browser) -> DatabaseFixture:
    return emptied(api_database)


def end(
    database: DatabaseFixture, tenant: TenantProfile, ending: Ending = DONE, seconds: float = 2.0
) -> str:
    """A job that came to an end."""
    claim = database.start(tenant_id=tenant.id)
    assert database.settle(claim.ref, ending, run_seconds=seconds)
    return claim.ref.id


def test_programs_get_the_document_and_browsers_the_page(http_client: HttpClient, key: str) -> None:
    bearer = {"Authorization": f"Bearer {key}"}
    for accept in (None, "*/*", "application/json", "application/json, text/html;q=0.5"):
        headers = bearer | ({"Accept": accept} if accept else {})
        answer = http_client.open("GET", PAGE, headers)
        assert answer.mimetype == "application/json", accept
        assert answer.json["name"] == "acme"  # type: ignore[index]  # it is JSON
        assert answer.headers["Vary"] == "Accept"
    answer = http_client.open("GET", PAGE, {**bearer, "Accept": "text/html"})
    assert answer.mimetype == "text/html"
    assert "Accept" in answer.headers["Vary"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_who_has_no_key_is_the_anonymous_tenant_where_there_is_one(http_client: HttpClient) -> None:
    page = Browser(http_client.app).page(PAGE)
    assert "<h1>demo</h1>" in page
    assert "Sign in with a key" in page


def test_the_page_leads_nowhere_into_the_console(browser: Browser) -> None:
    page = browser.page(PAGE)
    links = {part.partition('"')[0] for part in page.split('href="')[1:]}
    console = {link for link in links if link == "/" or link.startswith("/console/")}
    assert {link for link in console if not link.startswith("/console/assets/")} == {
        "/console/sign-in?next=/tenant"
    }
    assert "Flower" not in page
    assert 'data-live-events="/tenant/events"' in page
    assert 'action="/console/sign-out"' in page


def test_an_error_leads_nowhere_into_the_console_either(browser: Browser) -> None:
    answer = browser.get(f"{PAGE}/jobs/nonsense")
    assert answer.status_code == 404
    assert "/console/jobs" not in answer.text and 'href="/"' not in answer.text


def test_a_revoked_key_leads_to_sign_in_and_is_forgotten(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    create_tenant(api_database.engine, "brief")
    issued = issue_key(api_database.engine, "brief")
    browser = Browser(http_client.app, issued.key)
    assert "<h1>brief</h1>" in browser.page(PAGE)
    revoke_key(api_database.engine, issued.id)
    database: Services = http_client.app.extensions["fairline"]
    database.tenants.directory.refresh()
    answer = browser.get(PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (
        303,
        "/console/sign-in?next=/tenant",
    )
    assert answer.headers["Set-Cookie"].startswith("fairline_tenant=;")
    assert browser.post(REPLAY, {"id": new_id()}).status_code == 303


def test_a_tenant_sees_its_own_figures_and_nobody_elses(
    browser: Browser, database: DatabaseFixture, acme: TenantProfile, rival: TenantProfile
) -> None:
    for seconds in (1.0, 3.0):
        end(database, acme, seconds=seconds)
    other = end(database, rival, FAILED, seconds=500.0)
    waiting = [database.submit(tenant_id=tenant.id) for tenant in (acme, acme, rival)]
    database.execute(
        "INSERT INTO refusals VALUES (%s, current_date, 'TENANT_RATE_LIMIT_EXCEEDED', 12),"
        " (%s, current_date, 'X', 99)",
        *(acme.id, rival.id),
    )
    page = browser.page(PAGE)
    text = text_of(page)
    # Share, in line, scheduled, may wait, in flight, at most, own slots.
    assert cells(page, "medium")[1:] == ["50 %", "2", "0", "10 000 000", "0", "100", "–"]
    assert cells(page, "echo")[1:3] == ["2", "100 %"]
    today = datetime.now(UTC).date().isoformat()
    assert cells(page, today)[1:] == ["2", "2", "4.0 s", "0", "0", "0.0001"]
    assert "0.00002 per slot-second, 0.00001 per job" in text
    assert "TENANT_RATE_LIMIT_EXCEEDED 12" in text
    assert "In, last minute 0.07 jobs per second Out, last minute 0.03 jobs per second" in text
    assert "The pool medium has no workers." in text
    assert waiting[0] in page and waiting[1] in page
    for foreign in (other, waiting[2], "rival", "POISON"):
        assert foreign not in page
    assert page.count("fair_") == 1  # its own key


def test_a_job_of_somebody_elses_is_not_there(
    browser: Browser, database: DatabaseFixture, acme: TenantProfile, rival: TenantProfile
) -> None:
    own, other = end(database, acme), end(database, rival)
    for path in ("", "/payload", "/result"):
        assert browser.get(f"{PAGE}/jobs/{own}{path}").status_code == 200
        answers = [
            browser.get(f"{PAGE}/jobs/{job}{path}")
            for job in (other, new_id(), "nonsense", own[:-1])
        ]
        assert [answer.status_code for answer in answers] == [404] * 4
        assert len({text_of(answer.text) for answer in answers}) == 1
    assert browser.post(REPLAY, {"id": other}).status_code == 303
    assert database.job(other).status == "succeeded"


def test_the_oldest_job_is_found_behind_priorities_and_dependencies(
    browser: Browser, database: DatabaseFixture, acme: TenantProfile
) -> None:
    ids = [new_id() for _ in range(5)]
    for job_id, dependency, priority in zip(
        ids, ("claude", "", "", "maps", ""), (-5, 3, 9, 9, 0), strict=True
    ):
        database.submit(id=job_id, tenant_id=acme.id, dependency=dependency, priority=priority)
    with database.engine.connect() as connection:
        for oldest in ids:
            found = tenant_page.read_waiting_job(connection, acme.id)
            assert found is not None and found["id"] == oldest
            database.execute("DELETE FROM jobs WHERE id = %s", oldest)
        assert tenant_page.read_waiting_job(connection, acme.id) is None


def test_dead_letters_are_replayed_one_by_one_or_as_a_group(
    browser: Browser, database: DatabaseFixture, acme: TenantProfile, rival: TenantProfile
) -> None:
    dead = [end(database, acme, FAILED) for _ in range(3)]
    other = end(database, acme, FAILED._replace(error_class=FailureClass.TIMEOUT))
    foreign = end(database, rival, FAILED)
    page = browser.page(PAGE)
    assert "<script>alert(1)" not in page
    assert "echo POISON 3" in text_of(page) and "echo TIMEOUT 1" in text_of(page)
    answer = browser.post(REPLAY, {"id": dead[0]})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/tenant#dead-letters")
    assert "1%20dead%20letter%20queued" in answer.headers["Set-Cookie"]
    assert database.job(dead[0]).status == "queued"
    answer = browser.post(REPLAY, {"type": "echo", "error_class": "POISON"})
    assert "2%20dead%20letters%20queued" in answer.headers["Set-Cookie"]
    assert [database.job(job).status for job in (*dead, other, foreign)] == [
        *("queued", "queued", "queued", "dead", "dead")
    ]
    assert "Nothing%20was%20replayed" in browser.post(REPLAY, {"id": dead[0]}).headers["Set-Cookie"]
    for form in ({}, {"type": "echo"}, {"error_class": "POISON"}):
        assert browser.post(REPLAY, form).status_code == 422
    assert (
        "Nothing%20was%20replayed" in browser.post(REPLAY, {"id": "nonsense"}).headers["Set-Cookie"]
    )


def test_a_job_tells_its_way_its_documents_and_its_error_as_text(
    browser: Browser, database: DatabaseFixture, acme: TenantProfile
) -> None:
    large = json.dumps({"letter": "<script>alert(2)</script>" + "x" * 30_000})
    claim = database.start(tenant_id=acme.id, payload=large)
    database.settle(claim.ref, FAILED)
    path = f"{PAGE}/jobs/{claim.ref.id}"
    page = browser.page(path)
    text = text_of(page)
    assert "<script>alert" not in page
    assert "POISON <script>alert(1)</script>" in text
    assert "Submitted" in text and "Dead: no further attempts" in text
    assert f'href="{path}/payload"' in page
    assert 'name="id"' in page and "Replay" in page
    whole = browser.get(f"{path}/payload")
    assert (whole.mimetype, json.loads(whole.text)) == ("text/plain", json.loads(large))
    assert "sandbox" in whole.headers["Content-Security-Policy"]
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    done = end(database, acme)
    assert "<i>hello</i>" in text_of(browser.page(f"{PAGE}/jobs/{done}"))
    queued = database.submit(tenant_id=acme.id)
    assert "Why it is waiting" in browser.page(f"{PAGE}/jobs/{queued}")


def test_live_parts_are_the_same_while_nothing_changes(
    browser: Browser, database: DatabaseFixture, acme: TenantProfile
) -> None:
    dead = end(database, acme, FAILED)
    end(database, acme)
    for rule, values in ((PAGE, {}), (JOB, {"job_id": dead})):
        # Twice, for a minute may be over between two looks.
        looks = [browser.parts(rule, tenant=acme, **values) for _ in range(3)]
        assert looks[1] in (looks[0], looks[2])
    assert browser.parts(PAGE, tenant=acme).keys() == {"now", "flow", "jobs", "dead", "usage"}
    before = browser.parts(JOB, tenant=acme, job_id=dead)
    browser.post(REPLAY, {"id": dead})
    assert before != browser.parts(JOB, tenant=acme, job_id=dead)


def test_streams_of_a_page_are_the_tenants_own(
    http_client: HttpClient,
    key: str,
    database: DatabaseFixture,
    acme: TenantProfile,
    rival: TenantProfile,
) -> None:
    own, other = end(database, acme), end(database, rival)
    bearer = {"Authorization": f"Bearer {key}"}
    live_pages = http_client.app.extensions["fairline_live_pages"]
    for page in ("/tenant", f"/tenant/jobs/{own}"):
        answer = http_client.open("GET", f"/tenant/events?page={page}", bearer)
        assert (answer.status_code, answer.mimetype) == (200, "text/event-stream")
        # Who only asks for the headers watches nothing.
        assert http_client.open("HEAD", f"/tenant/events?page={page}", bearer).status_code == 200
    assert live_pages.viewers == 0
    for page in ("/", "/console/tenants", "/console/jobs", "/tenant/usage"):
        assert http_client.open("GET", f"/tenant/events?page={page}", bearer).status_code == 404
    with pytest.raises(Exception, match="does not belong to you"):
        Browser(http_client.app).parts(JOB, tenant=acme, job_id=other)


def test_a_tenant_does_not_take_the_places_of_all_who_watch(
    http_client: HttpClient, key: str, database: DatabaseFixture, acme: TenantProfile
) -> None:
    live_pages = http_client.app.extensions["fairline_live_pages"]
    page = next(page for page in LIVE_PAGES if page.rule == PAGE)
    with http_client.app.test_request_context():
        streams = [
            live_pages.watch(page, PageRequest(PAGE, tenant=acme), lambda: True)
            for _ in range(MOST_OF_TENANT)
        ]
        for stream in streams:
            next(stream)
        with pytest.raises(TooManyStreams):
            live_pages.watch(page, PageRequest(PAGE, tenant=acme), lambda: True)
        # Whatever is behind the question mark, it is the same page, and the same refusal.
        bearer = {"Authorization": f"Bearer {key}"}
        full = http_client.open("GET", "/tenant/events?page=/tenant?x=1", bearer)
        assert full.status_code == 503
        rival = live_pages.watch(
            page, PageRequest(PAGE, tenant=TenantProfile(99, "x")), lambda: True
        )
        next(rival)
        for stream in (rival, *streams):
            stream.close()
    assert live_pages.viewers == 0
    assert http_client.open("GET", "/tenant/events?page=/tenant", bearer).status_code == 200


def test_no_statement_walks_more_than_it_says(
    database: DatabaseFixture, acme: TenantProfile
) -> None:
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, finished_at, ended_xid)"
        " SELECT gen_random_uuid(), 1 + n %% 50, 'echo', 'medium', '{}', part.status, now(),"
        " CASE WHEN part.status <> 'queued' THEN pg_current_xact_id() END"
        " FROM (VALUES ('succeeded'::job_status, 8000), ('dead', 1000), ('queued', 2000))"
        " AS part (status, jobs), generate_series(1, part.jobs) AS n"
    )
    database.execute("ANALYZE jobs")
    tenant = {"tenant": acme.id}
    above = {"above": ABOVE_ALL, "since": id_before(datetime.now(UTC))}
    flow = tenant_page_flow
    assert_walks(plan_of(database, flow.READ_SUBMITTED, **tenant, **above), "jobs_of_tenant")
    assert_walks(plan_of(database, flow.READ_ENDED, **tenant), "jobs_ended")
    assert_walks(plan_of(database, tenant_page.GROUP_DEAD, **tenant, **above), "jobs_dead")
    assert_walks(
        plan_of(database, tenant_page.READ_OLDEST, **tenant, pools=list(POOLS)), "jobs_line"
    )
