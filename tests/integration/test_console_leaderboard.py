"""The leaderboard and the candidate's page: ranking, submitting, the record behind a score."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.api.visitors import OPERATOR_COOKIE
from app.console.leaderboard.candidate import CANDIDATE, COUNT_TIED, READ_CANDIDATE, ordinal
from app.console.leaderboard.page import LEADERBOARD, MOST_ROLES, READ_FIRST_TENANT, READ_ROLES
from app.console.page import Asked, render_parts
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.ids import new_id
from models.states import JobStatus
from tasks.runtime.claim import JobRef
from tasks.runtime.outcome import Ending
from tasks.scorers import Application
from tasks.scorers.simulated import SimulatedScorer
from tests.integration.door import Door, opened
from tests.integration.house import House
from tests.integration.plans import assert_walks, plan_of
from tests.integration.test_api_contract import bring
from tests.integration.test_api_leaderboard import put

PATH = "/console/leaderboard"
HOSTILE = "<script>alert(1)</script>"
LETTER = {"letter": "Built a compiler in six weeks.", "years": 7}


class Visitor(Door):
    """An operator in a browser."""

    key = ""

    def get(self, path: str) -> TestResponse:
        return self._send("GET", path)

    def send(self, path: str = PATH, **typed: str) -> TestResponse:
        """Submit the form."""
        given = {"tenant": "demo", "candidate": "Ada", "role": "sent", "application": "Hire me."}
        return self._send("POST", path, data={**given, **typed})

    def see(self, path: str) -> str:
        """The words on a page, without its tags."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return words(answer.text)

    def _send(self, method: str, path: str, **given: Any) -> TestResponse:
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "text/html"}
        return self.app.test_client().open(path, method=method, headers=headers, **given)


def words(part: str) -> str:
    """What a reader sees of a page's content, or of a part of it."""
    start = part.find("<main")
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", part[max(start, 0) :])).split())


@pytest.fixture(scope="module")
def visitor(api_house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    with opened(api_house, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        found = Visitor(app)
        found.key = issue_key(api_house.engine, None).key
        yield found


def score(house: House, role: str, payload: dict[str, Any], **changes: Any) -> str:
    """An application that was scored as a worker does it; its id."""
    application = Application("Ada", role, payload)
    job_id = house.submit(
        type="score_application",
        candidate="Ada",
        role=role,
        payload=json.dumps(asdict(application)),
    )
    bring(house, job_id, "running")
    record = asdict(SimulatedScorer(seconds=0).score(application)) | changes
    assert house.settle(
        JobRef(job_id, 0), Ending(JobStatus.SUCCEEDED, 1, result=json.dumps(record))
    )
    return job_id


def ranks(page: str) -> list[str]:
    cells = re.findall(r'<td class="number rank">(.*?)</td>', page, re.DOTALL)
    return [words(cell) for cell in cells]


def test_ties_and_near_ties_are_shown_as_such(visitor: Visitor, api_house: House) -> None:
    put(api_house, "close", [90, 80, 80, 79.01, 78.01, 60])
    page = visitor.get(f"{PATH}?role=close").text
    assert ranks(page) == ["1", "= tied 2", "= tied 2", "4", "5", "6"]
    rows = page.partition("<tbody>")[2].split("</tr>")
    assert ['class="near"' in row for row in rows[:6]] == [False, False, True, True, False, False]


def test_pages_go_on_where_the_one_before_ended_ties_included(
    visitor: Visitor, api_house: House
) -> None:
    put(api_house, "long", [90.0] * 49 + [80, 80, 70])
    first = visitor.get(f"{PATH}?role=long&tenant=demo").text
    assert ranks(first)[-1] == "= tied 50"
    (following,) = re.findall(r'href="([^"]*cursor[^"]*)"', first)
    second = visitor.get(html.unescape(following)).text
    assert ranks(second) == ["= tied 50", "52"]
    assert "Back to the top" in second
    assert 'rel="next"' not in second
    assert visitor.get(f"{PATH}?role=long&cursor=made-up").status_code == 422


def test_a_tenant_and_a_role_are_chosen_where_none_is_named(
    visitor: Visitor, api_house: House
) -> None:
    create_tenant(api_house.engine, "chosen")
    (row,) = api_house.query("SELECT id FROM tenants WHERE name = 'chosen'")
    assert "role general of chosen is scored yet" in visitor.see(f"{PATH}?tenant=chosen")
    for role in ("welder", "baker", "baker", "chef"):
        put(api_house, role, [50], tenant_id=row.id)
    newest = "ffffffff-ffff-7fff-8fff-ffffffffffff"
    api_house.execute(
        "UPDATE applications SET id = %s WHERE ctid = (SELECT ctid FROM applications"
        " WHERE tenant_id = %s AND role = 'baker' LIMIT 1)",
        newest,
        row.id,
    )
    page = visitor.get(f"{PATH}?tenant=chosen").text
    roles = page.partition('id="choose-role"')[2].partition("</select>")[0]
    assert re.findall(r"<option[^>]*>(\w+)", roles) == ["baker", "chef", "welder"]
    assert "<option selected>baker</option>" in roles
    assert ranks(page) == ["= tied 1", "= tied 1"]
    assert "<option selected>demo</option>" in visitor.get(PATH).text


def test_more_roles_than_can_be_chosen_from_are_typed(visitor: Visitor, api_house: House) -> None:
    create_tenant(api_house.engine, "many-roles")
    (row,) = api_house.query("SELECT id FROM tenants WHERE name = 'many-roles'")
    for number in range(MOST_ROLES + 5):
        put(api_house, f"role {number:03}", [50], tenant_id=row.id)
    page = visitor.get(f"{PATH}?tenant=many-roles&role=role 104").text
    assert ranks(page) == ["1"]
    assert '<input id="choose-role" name="role" value="role 104" list="known-role"' in page


def test_a_tenant_that_is_not_there_is_not_found(visitor: Visitor) -> None:
    assert visitor.get(f"{PATH}?tenant=nobody").status_code == 404


def test_what_is_submitted_waits_and_what_is_no_object_is_text(
    visitor: Visitor, api_house: House
) -> None:
    for typed, payload in (
        ("Hire me.\r\nPlease.", {"text": "Hire me.\nPlease."}),
        ('{"years": 7, "big": 123456789012345678901}', {"years": 7, "big": 123456789012345678901}),
        ("[1, 2]", {"text": "[1, 2]"}),
    ):
        answer = visitor.send(candidate=f" {HOSTILE} ", role="sent", application=typed)
        assert answer.status_code == 303, answer.text
        target = answer.headers["Location"]
        row = api_house.job(target.rpartition("/")[2])
        assert row.payload == {"candidate": HOSTILE, "role": "sent", "payload": payload}
        assert (row.tenant_id, row.type, row.dependency) == (1, "score_application", "claude")
        page = visitor.get(target).text
        assert HOSTILE not in page
        assert "It waits in the line to be scored." in page
        assert HOSTILE in words(page)


def test_an_application_is_submitted_as_the_tenant_of_the_page(
    visitor: Visitor, api_house: House
) -> None:
    answer = visitor.send(tenant="other")
    row = api_house.job(answer.headers["Location"].rpartition("/")[2])
    assert row.tenant_id == 2


@pytest.mark.parametrize(
    ("typed", "field", "message"),
    [
        ({"candidate": " "}, "candidate", "at least 1 character"),
        ({"candidate": "x" * 201}, "candidate", "at most 200 characters"),
        ({"role": "\0"}, "role", "NUL"),
        ({"application": " \n"}, "application", "nothing to be scored"),
        ({"application": '{"a": "\\u0000"}'}, "application", "NUL"),
        ({"application": '{"broken": NaN}'}, "application", "begins like a JSON object"),
    ],
)
def test_what_is_refused_is_told_beside_its_field_and_nothing_typed_is_lost(
    visitor: Visitor, typed: dict[str, str], field: str, message: str
) -> None:
    kept = {"candidate": "Ada </textarea>", "role": "kept", "application": "</textarea> dear"}
    answer = visitor.send(f"{PATH}?tenant=demo&role=close", **{**kept, **typed})
    assert answer.status_code == 422
    assert f'aria-describedby="wrong-{field}"' in answer.text
    told = answer.text.partition(f'id="wrong-{field}">')[2].partition("</p>")[0]
    assert message in told
    for name, value in kept.items():
        if name not in typed:
            assert html.escape(value) in answer.text
    assert 'action="/console/leaderboard?tenant=demo&amp;role=close"' in answer.text


def test_everything_that_is_wrong_is_told_at_once(visitor: Visitor) -> None:
    page = visitor.send(candidate="", role=" ", application="").text
    told = re.findall(r'id="wrong-(\w+)"', page)
    assert told == ["candidate", "role", "application"]


def test_a_limit_of_the_tenant_holds_here_too(visitor: Visitor, api_house: House) -> None:
    terms = Change({"submit_per_second": 0.01, "submit_burst": 1.0})
    create_tenant(api_house.engine, "slow", terms)
    assert visitor.send(tenant="slow").status_code == 303
    answer = visitor.send(tenant="slow", application="Hire me, soon.")
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 1
    assert "Not submitted." in answer.text
    assert "Hire me, soon." in answer.text


def test_nobody_else_submits(visitor: Visitor, api_house: House) -> None:
    client = visitor.app.test_client()
    typed = {"tenant": "demo", "candidate": "Ada", "role": "foreign", "application": "x"}
    tenants = {"Authorization": f"Bearer {issue_key(api_house.engine, 'other').key}"}
    assert client.post(PATH, data=typed, headers=tenants).status_code == 403
    assert client.post(PATH, data=typed).status_code == 401
    client.set_cookie(OPERATOR_COOKIE, visitor.key)
    for site in ("cross-site", "same-site", "none"):
        assert client.post(PATH, data=typed, headers={"Sec-Fetch-Site": site}).status_code == 403
    own = {"Sec-Fetch-Site": "same-origin"}
    assert client.post(PATH, data=typed, headers=own).status_code == 303
    assert len(api_house.query("SELECT 1 FROM applications WHERE role = 'foreign'")) == 1


def test_a_score_shows_the_record_that_it_came_from(visitor: Visitor, api_house: House) -> None:
    job_id = score(api_house, "record", LETTER)
    put(api_house, "record", [100, float(api_house_score(api_house, job_id))])
    seen = visitor.see(f"{PATH}/{job_id}")
    document = visitor.call(None, "GET", f"/applications/{job_id}").json
    assert document is not None
    assert "Rank 2nd of the role, tied with 1" in seen
    for mark in document["criteria"]:
        assert f"{mark['title']} weight {mark['weight']} % {mark['mark']:.2f}" in seen
    assert "Built a compiler" in " ".join(q for qs in document["evidence"].values() for q in qs)
    assert f"the marks amount to {document['score']:.2f}: the score" in seen
    assert document["record"]["input"] == Application("Ada", "record", LETTER).fingerprint()
    for value in (document["record"]["rubric"], document["record"]["input"], "simulated"):
        assert value in seen
    assert "its hash is the one in the record" in seen


def api_house_score(house: House, job_id: str) -> Any:
    return house.query("SELECT score FROM applications WHERE id = %s", job_id)[0].score


def test_the_record_outlives_the_job(visitor: Visitor, api_house: House) -> None:
    job_id = score(api_house, "outlives", LETTER)
    parts = ("score", "criteria", "evidence", "record", "result")
    before = visitor.call(None, "GET", f"/applications/{job_id}").json
    api_house.execute("DELETE FROM jobs WHERE id = %s", job_id)
    visitor.services.views._kept.clear()
    after = visitor.call(None, "GET", f"/applications/{job_id}").json
    assert before is not None
    assert after is not None
    assert [after[part] for part in parts] == [before[part] for part in parts]
    seen = visitor.see(f"{PATH}/{job_id}")
    assert after["record"]["input"] in seen
    assert "It was removed with its job" in seen


def test_a_quote_that_was_dropped_is_told_and_hostile_ones_are_text(
    visitor: Visitor, api_house: House
) -> None:
    job_id = score(
        api_house, "quotes", {"cv": HOSTILE}, evidence={"clarity": [HOSTILE]}, dropped_quotes=2
    )
    page = visitor.get(f"{PATH}/{job_id}").text
    assert HOSTILE not in page
    assert "<q>&lt;script&gt;" in page
    assert "2 that do not occur there or say nothing were dropped" in words(page)


def test_a_score_that_its_marks_do_not_amount_to_is_told(
    visitor: Visitor, api_house: House
) -> None:
    job_id = score(api_house, "tampered", LETTER)
    api_house.execute("UPDATE applications SET score = score / 2 + 1 WHERE id = %s", job_id)
    api_house.execute(
        'UPDATE jobs SET payload = \'{"payload": {"letter": "another"}}\' WHERE id = %s', job_id
    )
    seen = visitor.see(f"{PATH}/{job_id}")
    assert "which is not the score" in seen
    assert "Its hash is not the one in the record" in seen


@pytest.mark.parametrize(
    "result",
    ['{"score": 9, "rationale": "old", "model": "m", "rubric": "r", "usage": null}', None],
)
def test_scores_from_before_records_were_kept_are_shown(
    visitor: Visitor, api_house: House, result: str | None
) -> None:
    job_id = api_house.submit_application(role="old")
    bring(api_house, job_id, "succeeded")
    api_house.execute("UPDATE jobs SET result = %s WHERE id = %s", result, job_id)
    api_house.execute("UPDATE applications SET score = 9 WHERE id = %s", job_id)
    assert "Score 9.00 of 100" in visitor.see(f"{PATH}/{job_id}")
    document = visitor.call(None, "GET", f"/applications/{job_id}").json
    assert document is not None
    assert (document["criteria"], document["evidence"]) == (None, None)
    nothing = {"input": None, "dropped_quotes": None}
    assert document["record"] == (result and {"model": "m", "rubric": "r", **nothing})


@pytest.mark.parametrize(
    ("status", "changes", "told"),
    [
        ("queued", "attempt = 0", "It waits in the line to be scored."),
        ("running", "started_at = now()", "It is being scored."),
        ("dead", "error_class = 'PERMANENT', error_message = '<b>no key</b>'", "PERMANENT: <b>no"),
        ("cancelled", "finished_at = now()", "It was withdrawn"),
        ("expired", "not_after = now()", "It expired: it was not started by"),
    ],
)
def test_what_is_not_scored_says_why(
    visitor: Visitor, api_house: House, status: str, changes: str, told: str
) -> None:
    job_id = api_house.submit_application(role="unscored")
    if status != "queued":
        bring(api_house, job_id, status)
    api_house.execute(f"UPDATE jobs SET {changes} WHERE id = %s", job_id)
    page = visitor.get(f"{PATH}/{job_id}").text
    assert told in words(page)
    assert "<b>no key" not in page
    assert "Criteria" not in page


def test_a_retry_is_announced_with_its_reason(visitor: Visitor, api_house: House) -> None:
    job_id = api_house.submit_application(role="unscored")
    bring(api_house, job_id, "running")
    api_house.execute(
        "UPDATE jobs SET status = 'scheduled', execute_at = now() + interval '1 minute',"
        " deferrals = 2, error_class = 'DEPENDENCY', error_message = 'overloaded' WHERE id = %s",
        job_id,
    )
    seen = visitor.see(f"{PATH}/{job_id}")
    assert "The last try gave no score; it is tried again" in seen
    assert "DEPENDENCY: overloaded" in seen


def test_an_application_that_is_not_there_is_not_found(visitor: Visitor, api_house: House) -> None:
    for text in ("nonsense", new_id(), api_house.submit()):
        assert visitor.get(f"{PATH}/{text}").status_code == 404


def test_a_large_application_is_cut_and_read_only_for_the_whole_page(visitor: Visitor) -> None:
    text = "A word and another. " * 40_000
    target = visitor.send(application=text).headers["Location"]
    answer = visitor.get(target)
    assert len(answer.text) < 60_000
    assert "The first 20 000 of 800 000 characters." in words(answer.text)
    job_id = target.rpartition("/")[2]
    for blob in visitor.services.blobs.list(-1.0):
        visitor.services.blobs.delete(blob)
    assert "The store for large applications does not answer." in visitor.see(target)
    with visitor.app.app_context():
        parts = render_parts(CANDIDATE, Asked(target, {"application_id": job_id}))
    assert "It waits in the line" in parts["standing"]


def test_an_application_of_many_brackets_is_shown_in_one_line(visitor: Visitor) -> None:
    deep = "[" * 60 + ",".join(["1"] * 200_000) + "]" * 60
    target = visitor.send(application=f'{{"a": {deep}}}').headers["Location"]
    page = visitor.get(target).text
    assert "[[[[[" in page  # indented it would have 25 MB, and take seconds
    assert len(page) < 60_000


def test_live_parts_stay_the_same_while_nothing_changes(visitor: Visitor, api_house: House) -> None:
    job_id = score(api_house, "still", LETTER)
    asked = Asked(f"{PATH}/{job_id}", {"application_id": job_id})
    with visitor.app.app_context():
        assert render_parts(CANDIDATE, asked) == render_parts(CANDIDATE, asked)
        ranking = render_parts(LEADERBOARD, Asked(PATH))
        assert ranking == render_parts(LEADERBOARD, Asked(PATH))
    assert set(ranking) == {"ranking"}


def test_the_pages_walk_along_the_ranking(api_house: House) -> None:
    api_house.execute(
        "INSERT INTO applications (id, tenant_id, candidate, role, score)"
        " SELECT gen_random_uuid(), 1 + n %% 3, 'c', 'r' || n %% 7, n %% 100"
        " FROM generate_series(1, 20000) AS n"
    )
    api_house.execute("ANALYZE applications")
    for statement in (READ_ROLES, READ_FIRST_TENANT, COUNT_TIED):
        plan = plan_of(api_house, statement, tenant=1, role="r1", score=50)
        assert_walks(plan.replace("tenants_pkey", "leaders_pkey"), "applications_ranking")
    plan = plan_of(api_house, READ_CANDIDATE, id=new_id())
    assert "Seq Scan on applications" not in plan


def test_ordinals() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111, 1012)
    told = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 101st 111th 1012th"
    assert " ".join(ordinal(number) for number in numbers) == told
