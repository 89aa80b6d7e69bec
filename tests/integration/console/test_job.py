"""``/console/jobs/<id>``: what happened to a job, what it waits for, what it was given and gave."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime, timedelta

from models.blobs import payload_key
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.presence import PRESENCE_LOST_SECONDS, Presence, announce
from tests.integration.api.test_contract import bring
from tests.support.browsing import Browser
from tests.support.database_fixture import DatabaseFixture

RULE = "/console/jobs/<job_id>"
SCRIPT_TAG = "<script>alert(1)</script>"


def show(console: Browser, job_id: str) -> str:
    return html.unescape(console.page(f"/console/jobs/{job_id}"))


def fail(
    database: DatabaseFixture, ref: JobRef, status: JobStatus, message: str, worker: str = "w1"
) -> None:
    delay = 30.0 if status is JobStatus.SCHEDULED else 0.0
    ending = Ending(
        status,
        tries_spent=1,
        delay_seconds=delay,
        error_class=FailureClass.APP_ERROR,
        error_message=message,
    )
    assert database.settle(ref, ending, worker=worker)


def test_the_timeline_tells_every_run_and_the_replay(
    console: Browser, database: DatabaseFixture
) -> None:
    claim = database.start(type="echo")
    fail(database, claim.ref, JobStatus.SCHEDULED, "first it was this")
    database.execute("UPDATE jobs SET status = 'queued', execute_at = NULL")
    (dispatch,) = database.dispatch()
    (again,) = database.claim(JobRef(dispatch.id, dispatch.lease), worker="w2")
    fail(database, again.ref, JobStatus.DEAD, "then it was that", "w2")
    dead = show(console, claim.ref.id)
    for told in ("w1", "w2", "first it was this", "then it was that", "Next run after", "lease 2"):
        assert told in dead
    assert "Dead: no further attempts" in dead and "/replay" in dead
    answer = console.post(f"/console/jobs/{claim.ref.id}/replay", {})
    assert console.notice(answer) == "The job is queued again."
    back = show(console, claim.ref.id)
    assert "<b>Replayed</b>" in back and "<b>Queued</b>" in back and "then it was that" in back
    assert "not a dead letter" in console.notice(
        console.post(f"/console/jobs/{claim.ref.id}/replay", {})
    )


def test_a_job_that_waits_says_why_and_what_is_ahead(
    console: Browser, database: DatabaseFixture
) -> None:
    for _ in range(3):
        database.submit()
    last = database.submit()
    page = show(console, last)
    assert "no workers" in page and "3 of the same tenant" in page
    assert "unknown" in page
    due = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=500_000)
    later = database.submit(execute_at=due)
    assert "It is not due for another 3 h" in show(console, later)
    looks = [console.parts(RULE, job_id=later) for _ in range(2)]
    assert looks[0] == looks[1]


def test_a_running_job_shows_its_progress_and_is_asked_to_stop(
    console: Browser, database: DatabaseFixture
) -> None:
    claim = database.start()
    database.execute("""UPDATE jobs SET progress = '{"done": 3, "total": 8}'""")
    database.execute(
        "INSERT INTO checkpoints (job_id, lease, state) VALUES (%s, 1, '{\"step\": 3}')",
        claim.ref.id,
    )
    page = show(console, claim.ref.id)
    assert 'value="3" max="8"' in page and "3 of 8" in page
    assert "11 bytes" in page and "w1" in page
    answer = console.post(f"/console/jobs/{claim.ref.id}/cancel", {})
    assert console.notice(answer) == "The job is running and is being stopped."
    assert "Cancellation requested" in show(console, claim.ref.id)
    waiting = database.submit()
    assert "is cancelled" in console.notice(console.post(f"/console/jobs/{waiting}/cancel", {}))
    assert "already finished" in console.notice(console.post(f"/console/jobs/{waiting}/cancel", {}))


def test_every_page_says_that_the_worker_is_lost(
    console: Browser, database: DatabaseFixture
) -> None:
    claim = database.start()
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=4))
    lost = "Its worker was lost; it is about to be queued again."
    path = f"/jobs/{claim.ref.id}/wait"
    assert console.get(path).json["reason"] == "running"
    database.execute(
        "UPDATE processes SET heartbeat_at = now() - make_interval(secs => %s)",
        PRESENCE_LOST_SECONDS,
    )
    page = show(console, claim.ref.id)
    assert "Running for" not in page and "was lost" in page and lost in page
    assert console.get(path).json["detail"] == lost
    assert "badge lost" in console.page("/console/workers")


def test_progress_that_makes_no_sense_is_not_shown(
    console: Browser, database: DatabaseFixture
) -> None:
    job_id = database.submit()
    for progress in (
        "null",
        "17",
        '{"done": "x", "total": 8}',
        '{"done": 1}',
        '{"done":1,"total":0}',
    ):
        database.execute("UPDATE jobs SET progress = %s", progress)
        assert "<progress" not in show(console, job_id)


def test_whatever_is_in_a_job_is_shown_as_text(console: Browser, database: DatabaseFixture) -> None:
    job_id = database.submit(
        type="score_application",
        payload=json.dumps({"name": SCRIPT_TAG}),
        candidate=SCRIPT_TAG,
        role="general",
    )
    bring(database, job_id, "dead")
    database.execute(
        "UPDATE jobs SET error_class = 'PERMANENT', error_message = %s, result = %s, worker = %s",
        SCRIPT_TAG,
        json.dumps(SCRIPT_TAG),
        SCRIPT_TAG,
    )
    page = console.page(f"/console/jobs/{job_id}")
    assert SCRIPT_TAG not in page and html.escape(SCRIPT_TAG) in page
    assert f'href="/console/leaderboard/{job_id}"' in page
    assert SCRIPT_TAG not in "".join(console.parts(RULE, job_id=job_id).values())


def test_facts_name_the_trace(console: Browser, database: DatabaseFixture) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    job_id = database.submit(traceparent=f"00-{trace}-b7ad6b7169203331-01")
    assert f"<code>{trace}</code>" in show(console, job_id)


def test_a_long_payload_is_cut_and_had_whole_as_plain_text(
    console: Browser, database: DatabaseFixture
) -> None:
    text = json.dumps({"text": SCRIPT_TAG + "x" * 60_000})
    job_id = database.submit(payload=text)
    page = show(console, job_id)
    assert "The first 20 000 of" in page.replace("\u202f", " ")
    assert len(page) < 60_000
    answer = console.get(f"/console/jobs/{job_id}/payload")
    assert (answer.status_code, answer.text) == (200, text)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "xxxx" not in "".join(console.parts(RULE, job_id=job_id).values())


def test_a_payload_in_the_blob_store_is_shown_too(
    console: Browser, database: DatabaseFixture
) -> None:
    blobs = console.app.extensions["fairline"].blobs
    job_id = new_id()
    key = payload_key(job_id)
    blobs.put(key, json.dumps({"large": "y" * 100_000}).encode())
    database.submit(id=job_id, payload="null", payload_blob=key)
    assert '{"large": "yyyy' in show(console, job_id)
    assert len(console.get(f"/console/jobs/{job_id}/payload").text) > 100_000
    blobs.delete(key)
    assert "The payload is no longer stored." in show(console, job_id)
    assert console.get(f"/console/jobs/{job_id}/payload").status_code == 404


def test_a_long_result_is_cut_and_had_whole(console: Browser, database: DatabaseFixture) -> None:
    job_id = database.submit()
    bring(database, job_id, "succeeded")
    database.execute("UPDATE jobs SET result = %s", json.dumps("z" * 30_000))
    page = show(console, job_id)
    assert "Full result" in page and "z" * 20_001 not in page
    assert len(console.get(f"/console/jobs/{job_id}/result").text) == 30_002


def test_a_job_that_is_not_there_is_a_page_that_says_so(
    console: Browser, database: DatabaseFixture
) -> None:
    for missing in (new_id(), "17"):
        for path in ("", "/payload", "/result"):
            answer = console.get(f"/console/jobs/{missing}{path}")
            assert answer.status_code == 404 and "Not found" in answer.text
    for act in ("cancel", "replay"):
        assert console.post(f"/console/jobs/{new_id()}/{act}", {}).status_code == 404
