"""A job's page: tracebacks and log lines by run, slot time, words for operators, resubmission."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.blobs import INLINE_BYTES
from models.jobs.claim import Claim
from models.jobs.run_logs import Logged
from models.jobs.settle import PLAIN, Ending, Settlement, settle_group
from models.jobs.states import FailureClass, JobStatus
from tests.support.browsing import Browser, text_of
from tests.support.database_fixture import DatabaseFixture

RULE = "/console/jobs/<job_id>"
LOG = json.dumps([{"at": "2026-03-01T12:00:00.000Z", "level": "info", "message": "<b>half</b>"}])
SIDES = ("/console/jobs", "/tenant/jobs")


@pytest.fixture
def tenant(operator: Browser, database: DatabaseFixture) -> Browser:
    """Somebody who has signed in with a key of the tenant ``demo``."""
    return Browser(operator.app, issue_key(database.engine, "demo").key)


@pytest.fixture(params=SIDES)
def visitor(
    request: pytest.FixtureRequest, operator: Browser, tenant: Browser
) -> tuple[Browser, str]:
    """Both sides, each with its own address."""
    return (operator if "console" in request.param else tenant), request.param


def end(database: DatabaseFixture, claim: Claim, status: JobStatus, **logged: Any) -> None:
    ending = Ending(status, 1, error_class=FailureClass.APP_ERROR, error_message="no luck")
    said = Settlement(claim.ref, ending, 2.0, logged=Logged(LOG, **logged))
    assert settle_group(database.engine, PLAIN, "w1", [said]) == [True]


def made(database: DatabaseFixture, **fields: Any) -> Claim:
    """A dead letter, whose last run logged and failed."""
    claim = database.start(**fields)
    end(database, claim, JobStatus.DEAD, dropped=1_234, traceback="Traceback\nValueError: <i>x</i>")
    return claim


def test_a_run_shows_its_traceback_and_its_lines(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    (browser, path), claim = visitor, made(database)
    page = browser.page(f"{path}/{claim.ref.id}")
    assert 'id="traceback-1"' in page and "ValueError: &lt;i&gt;x&lt;/i&gt;" in page
    assert "Log, 1 line (1\u202f234 older not kept)" in page
    assert "INFO &lt;b&gt;half&lt;/b&gt;" in page


def test_a_line_cannot_pass_for_another_one(operator: Browser, database: DatabaseFixture) -> None:
    claim = database.start()
    line = {"at": "2026-01-01T00:00:00.000Z", "level": "info", "message": "a\nb\x1b[1m"}
    ending = Ending(JobStatus.DEAD, 1, error_class=FailureClass.APP_ERROR)
    said = Settlement(claim.ref, ending, 2.0, logged=Logged(json.dumps([line]), 0, None))
    assert settle_group(database.engine, PLAIN, "w1", [said]) == [True]
    assert "INFO a\n    b\\x1b[1m" in operator.page(f"/console/jobs/{claim.ref.id}")


def test_slot_time_counts_while_a_job_runs(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    browser, path = visitor
    claim = database.start()
    began = datetime(2026, 3, 1, 12, tzinfo=UTC)
    database.execute("UPDATE jobs SET slot_seconds = 90, started_at = %s", began)
    page = browser.page(f"{path}/{claim.ref.id}")
    shown = re.search(r"<dt>Slot time</dt><dd><time datetime=\"([^\"]+)\" data-age>", page)
    assert shown and datetime.fromisoformat(shown[1]) == began - timedelta(seconds=90)
    looks = [browser.parts(RULE, job_id=claim.ref.id) for _ in range(2)]
    assert looks[0] == looks[1], "the browser counts, not the server"
    end(database, claim, JobStatus.DEAD)
    assert "<dt>Slot time</dt><dd>92\u202fs</dd>" in browser.page(f"{path}/{claim.ref.id}")


def test_operators_read_about_a_tenant_and_tenants_about_themselves(
    operator: Browser, tenant: Browser, database: DatabaseFixture
) -> None:
    database.execute(
        "INSERT INTO processes (name, kind, pools, slots) VALUES ('w', 'worker', '{medium}', 1)"
    )
    database.start()
    waiting = [database.submit() for _ in range(3)][-1]
    ours = operator.text(f"/console/jobs/{waiting}")
    assert "2 jobs of the tenant are ahead of it; its share" in ours
    assert not re.search(r"\byours?\b", ours, re.IGNORECASE), ours
    assert "2 jobs of yours are ahead of it; your share" in tenant.text(f"/tenant/jobs/{waiting}")


def test_a_dead_letter_is_discarded_from_its_page(
    operator: Browser, tenant: Browser, database: DatabaseFixture
) -> None:
    claims = [made(database) for _ in range(2)]
    first, second = (claim.ref.id for claim in claims)
    assert operator.do(f"/console/jobs/{first}/discard") == "The dead letter is discarded."
    page = operator.text(f"/console/jobs/{first}")
    assert "Failed for good" in page and "Discarded" in page and "no luck" in page
    assert "Replay" not in re.sub(r"Replays \d", "", page)
    for action in ("discard", "replay"):
        notice = operator.do(f"/console/jobs/{first}/{action}")
        assert notice == "The job was a dead letter and has been discarded."
    assert tenant.do("/tenant/dead-letters/discard", id=second) == "1 dead letter discarded."
    assert tenant.do("/tenant/dead-letters/discard", id=second) == "0 dead letters discarded."
    assert not database.query("SELECT FROM jobs WHERE status = 'dead'")


def test_dead_letters_are_discarded_in_bulk(operator: Browser, database: DatabaseFixture) -> None:
    ids = [made(database).ref.id for _ in range(4)]
    assert "action=discard" in operator.page("/console/dead-letters")
    selected = {"action": "discard", "id": ids[0]}
    notice = operator.notice(operator.post("/console/jobs/selected", selected))
    assert notice == "1 job discarded."
    chosen = {"action": "discard", "status": "dead", "type": "echo"}
    page = operator.text("/console/jobs/all?action=discard&status=dead&type=echo")
    assert "3 dead letters match" in page and "cannot be replayed" in page
    assert operator.notice(operator.post("/console/jobs/all", chosen)) == "3 jobs discarded."
    assert not database.miscounted()


def textarea(page: str) -> str:
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def test_a_payload_is_edited_and_submitted_as_a_new_job(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    (browser, path), claim = visitor, made(database, payload='{"a": "ü"}', priority=7)
    form = f"{path}/{claim.ref.id}/resubmit"
    assert form in browser.page(f"{path}/{claim.ref.id}")
    page = browser.page(form)
    assert json.loads(textarea(page)) == {"a": "ü"} and 'value="7"' in page
    notice = browser.notice(browser.post(form, {"payload": '{"a": 12}', "priority": "-2"}))
    assert notice == "Submitted as a new job."
    old, new = database.query("SELECT * FROM jobs ORDER BY id")
    assert (old.status, new.status, new.payload, new.priority) == ("dead", "queued", {"a": 12}, -2)
    assert str(new.resubmitted_from) == str(old.id) == claim.ref.id
    assert (new.type, new.tenant_id, new.pool) == ("echo", old.tenant_id, "short")
    shown = browser.page(f"{path}/{new.id}")
    assert f'{path}/{old.id}">' in shown and "Resubmitted from" in shown
    assert browser.get(f"{path}/{new.id}/resubmit").status_code == 409, "it has not ended"


@pytest.mark.parametrize(
    ("typed", "field", "said"),
    [
        ({"payload": '{"a": '}, "payload", "payload is not JSON"),
        ({"payload": '"\\u0000"'}, "payload", "NUL"),
        ({"payload": "{}", "priority": "many"}, "priority", "priority Input should be"),
    ],
)
def test_what_was_typed_is_kept_beside_its_error(
    visitor: tuple[Browser, str],
    database: DatabaseFixture,
    typed: dict[str, str],
    field: str,
    said: str,
) -> None:
    (browser, path), claim = visitor, made(database)
    answer = browser.post(f"{path}/{claim.ref.id}/resubmit", {"priority": "3", **typed})
    page = answer.text
    assert answer.status_code == 422 and said in text_of(page)
    assert f'id="error-{field}"' in page and textarea(page) == typed["payload"]
    assert f'value="{typed.get("priority", "3")}"' in page
    assert len(database.query("SELECT FROM jobs")) == 1


def test_an_application_is_resubmitted_as_one(operator: Browser, database: DatabaseFixture) -> None:
    job_id = database.submit_application("Ada")
    database.execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
    form = f"/console/jobs/{job_id}/resubmit"
    wrong = operator.post(form, {"payload": '{"candidate": "Ada"}'})
    assert wrong.status_code == 422 and "payload.payload" in text_of(wrong.text)
    edited = json.dumps({"candidate": "Grace", "role": "general", "payload": "COBOL"})
    operator.notice(operator.post(form, {"payload": edited}))
    rows = database.query("SELECT candidate FROM applications ORDER BY id")
    assert [row.candidate for row in rows] == ["Ada", "Grace"]


def test_a_resubmission_is_a_submission_under_the_limits(
    operator: Browser, database: DatabaseFixture
) -> None:
    slow = create_tenant(
        database.engine, "slow", Change({"submit_per_second": 0.01, "submit_burst": 1.0})
    )
    claim = made(database, tenant_id=slow.id)
    form = f"/console/jobs/{claim.ref.id}/resubmit"
    first, second = [operator.post(form, {"payload": '{"kept": 1}'}) for _ in range(2)]
    assert (first.status_code, second.status_code) == (303, 429)
    assert textarea(second.text) == '{"kept": 1}' and int(second.headers["Retry-After"]) > 1


def test_a_payload_that_is_too_long_is_not_edited(
    operator: Browser, database: DatabaseFixture
) -> None:
    claim = made(database)
    database.execute("UPDATE jobs SET payload = to_json(repeat('x', 600000))")
    page = operator.page(f"/console/jobs/{claim.ref.id}/resubmit")
    assert "too long" in page and "<textarea" not in page
    assert INLINE_BYTES < 600_000


def test_the_list_finds_jobs_by_a_field_of_their_payload(
    operator: Browser, database: DatabaseFixture
) -> None:
    found = database.submit(payload='{"candidate": "alice", "n": {"m": 5}}')
    other = database.submit(payload='{"candidate": "bob"}')
    for asked in ("candidate%3Dalice", "n.m%3D5"):
        page = operator.page(f"/console/jobs?payload={asked}")
        assert found in page and other not in page
    page = operator.page("/console/jobs?payload=candidate")
    assert 'id="payload-error"' in page and found not in page
    sorted_page = operator.text("/console/jobs?payload=n.m%3D5&status=queued&sort=wait")
    assert "cannot be sorted by wait" in sorted_page and "Remove the payload field" in sorted_page
