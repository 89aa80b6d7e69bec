"""``GET /jobs/{id}/runs``: what became of every run, what it logged and where it failed."""

from __future__ import annotations

from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.run_logs import READ, Logged, keep_logs
from models.jobs.settle import PLAIN, Ending, Settlement, settle_group
from models.jobs.states import FailureClass, JobStatus
from tests.integration.api.test_jobs import start
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture
from tests.support.plans import assert_walks, plan_of

LINE = {"at": "2026-03-01T12:00:00.000Z", "level": "info", "message": "half of it"}
LOG = '[{"at": "2026-03-01T12:00:00.000Z", "level": "info", "message": "half of it"}]'


def test_runs_are_told_with_their_logs_and_tracebacks(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    claim = start(api_database)
    failed = Ending(
        JobStatus.SCHEDULED, 1, error_class=FailureClass.APP_ERROR, error_message="no luck"
    )
    said = Settlement(claim.ref, failed, 0.1, logged=Logged(LOG, 7, "Traceback …"))
    assert settle_group(api_database.engine, PLAIN, "w1", [said]) == [True]
    api_database.execute(
        "UPDATE jobs SET status = 'queued', execute_at = NULL WHERE id = %s", claim.ref.id
    )
    (sent,) = [one for one in api_database.dispatch() if one.id == claim.ref.id]
    (again,) = api_database.claim(JobRef(sent.id, sent.lease), worker="w2")
    assert keep_logs(api_database.engine, "w2", [(again.ref, Logged(LOG))])
    answer = api.get(f"/jobs/{claim.ref.id}/runs")
    assert answer.status == 200 and answer.headers["cache-control"] == "no-cache"
    first, second = answer.json()["runs"]
    assert (first["lease"], first["worker"], first["status"]) == (1, "w1", "scheduled")
    assert first["error"] == {"class": "APP_ERROR", "message": "no luck"}
    assert (first["log"], first["log_dropped"]) == ([LINE], 7)
    assert first["traceback"] == "Traceback …" and first["ended_at"]
    assert (second["lease"], second["worker"], second["status"]) == (2, "w2", "running")
    assert (second["log"], second["traceback"], second["ended_at"]) == ([LINE], None, None)


def test_a_job_that_never_ran_has_no_runs_and_a_stranger_finds_none(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    waiting, foreign = api_database.submit(), api_database.submit(tenant_id=2)
    assert api.get(f"/jobs/{waiting}/runs").json() == {"runs": []}
    for job_id in (foreign, new_id(), "nonsense"):
        assert api.get(f"/jobs/{job_id}/runs").status == 404


def test_a_run_that_was_handed_back_is_told_by_its_log(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    claim = start(api_database)
    back = Settlement(claim.ref, Ending(JobStatus.QUEUED, 0, 1), 0.5, logged=Logged(LOG))
    assert settle_group(api_database.engine, PLAIN, "w1", [back]) == [True]
    (run,) = api.get(f"/jobs/{claim.ref.id}/runs").json()["runs"]
    assert (run["status"], run["error"], run["log"]) == ("queued", None, [LINE])


def test_logs_are_read_by_key(api_database: DatabaseFixture) -> None:
    api_database.execute(
        "INSERT INTO run_logs (job_id, place, lease)"
        " SELECT gen_random_uuid(), 1, 1 FROM generate_series(1, 3000)"
    )
    api_database.execute("ANALYZE run_logs")
    assert_walks(plan_of(api_database, READ, id=new_id()), "run_logs_pkey")


def test_a_submission_names_the_job_that_it_replaces(api: ApiServer) -> None:
    first = api.post({"type": "echo"}, path="/jobs").json()["id"]
    again = {"type": "echo", "payload": {"fixed": True}, "resubmitted_from": first.upper()}
    second = api.post(again, path="/jobs").json()["id"]
    assert api.get(f"/jobs/{second}").json()["resubmitted_from"] == first
    assert api.get(f"/jobs/{first}").json()["resubmitted_from"] is None
    batch = api.post({"jobs": [again, again | {"resubmitted_from": "x"}]}, path="/jobs/batch")
    assert (batch.json()["accepted"], batch.json()["rejected"]) == (1, 1)
    for wrong in ("x", "", 7):
        answer = api.post(again | {"resubmitted_from": wrong}, path="/jobs")
        assert (answer.status, answer.json()["errors"][0]["field"]) == (422, "resubmitted_from")
