"""The leaderboard and the candidate's page: ranking, submitting, the record behind a score."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest

from app.api.auth.visitors import OPERATOR_COOKIE
from app.console.leaderboard.candidate import CANDIDATE, COUNT_TIED, READ_CANDIDATE, ordinal
from app.console.leaderboard.page import LEADERBOARD, MOST_ROLES, READ_FIRST_TENANT, READ_ROLES
from app.console.page import PageRequest, render_parts
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.jobs.ids import new_id
from tests.integration.api.test_leaderboard import put
from tests.support.applicants import HOSTILE, LETTER, PATH, Visitor, score, visiting, words
from tests.support.browsing import session_of_key
from tests.support.database_fixture import DatabaseFixture
from tests.support.plans import assert_walks, plan_of


@pytest.fixture(scope="module")
def visitor(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitor]:
    with visiting(api_database, tmp_path_factory.mktemp("blobs")) as found:
        yield found


def ranks(page: str) -> list[str]:
    cells = re.findall(r'<td class="number rank">(.*?)</td>', page, re.DOTALL)
    return [words(cell) for cell in cells]


def test_ties_and_near_ties_are_shown_as_such(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    put(api_database, "close", [90, 80, 80, 79.01, 78.01, 60])
    page = visitor.get(f"{PATH}?role=close").text
    assert ranks(page) == ["1", "= tied 2", "= tied 2", "4", "5", "6"]
    rows = page.partition("<tbody>")[2].split("</tr>")
    assert ['class="near"' in row for row in rows[:6]] == [False, False, True, True, False, False]


def test_pages_go_on_where_the_one_before_ended_ties_included(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    put(api_database, "long", [90.0] * 49 + [80, 80, 70])
    first = visitor.get(f"{PATH}?role=long&tenant=demo").text
    assert ranks(first)[-1] == "= tied 50"
    (following,) = re.findall(r'href="([^"]*cursor[^"]*)"', first)
    second = visitor.get(html.unescape(following)).text
    assert ranks(second) == ["= tied 50", "52"]
    assert "Back to the top" in second
    assert 'rel="next"' not in second
    assert visitor.get(f"{PATH}?role=long&cursor=made-up").status_code == 422


def test_a_tenant_and_a_role_are_chosen_where_none_is_named(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    create_tenant(api_database.engine, "chosen")
    (row,) = api_database.query("SELECT id FROM tenants WHERE name = 'chosen'")
    assert "general at chosen has been scored yet" in visitor.see(f"{PATH}?tenant=chosen")
    for role in ("welder", "baker", "baker", "chef"):
        put(api_database, role, [50], tenant_id=row.id)
    newest = "ffffffff-ffff-7fff-8fff-ffffffffffff"
    api_database.execute(
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


def test_more_roles_than_can_be_chosen_from_are_typed(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    create_tenant(api_database.engine, "many-roles")
    (row,) = api_database.query("SELECT id FROM tenants WHERE name = 'many-roles'")
    for number in range(MOST_ROLES + 5):
        put(api_database, f"role {number:03}", [50], tenant_id=row.id)
    page = visitor.get(f"{PATH}?tenant=many-roles&role=role 104").text
    assert ranks(page) == ["1"]
    assert '<input id="choose-role" name="role" value="role 104" list="known-role"' in page


def test_a_tenant_that_is_not_there_is_not_found(visitor: Visitor) -> None:
    assert visitor.get(f"{PATH}?tenant=nobody").status_code == 404


def test_what_is_submitted_waits_and_what_is_no_object_is_text(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    for typed, payload in (
        ("Hire me.\r\nPlease.", "Hire me.\nPlease."),
        ('{"years": 7, "big": 123456789012345678901}', {"years": 7, "big": 123456789012345678901}),
        ("[1, 2]", "[1, 2]"),
    ):
        answer = visitor.send(candidate=f" {HOSTILE} ", role="sent", application=typed)
        assert answer.status_code == 303, answer.text
        target = answer.headers["Location"]
        row = api_database.job(target.rpartition("/")[2])
        assert row.payload == {"candidate": HOSTILE, "role": "sent", "payload": payload}
        assert (row.tenant_id, row.type, row.dependency) == (1, "score_application", "claude")
        page = visitor.get(target).text
        assert HOSTILE not in page
        assert "Queued for scoring." in page
        assert HOSTILE in words(page)


def test_an_application_is_submitted_as_the_tenant_of_the_page(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    answer = visitor.send(tenant="other")
    row = api_database.job(answer.headers["Location"].rpartition("/")[2])
    assert row.tenant_id == 2


@pytest.mark.parametrize(
    ("typed", "field", "message"),
    [
        ({"candidate": " "}, "candidate", "at least 1 character"),
        ({"candidate": "x" * 201}, "candidate", "at most 200 characters"),
        ({"role": "\0"}, "role", "NUL"),
        ({"application": " \n"}, "application", "must not be empty"),
        ({"application": '{"a": "\\u0000"}'}, "application", "NUL"),
        ({"application": '{"broken": NaN}'}, "application", "starts with { but is not"),
        ({"application": '{"a":' * 1024 + "1" + "}" * 1024}, "application", "starts with { but"),
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


def test_a_limit_of_the_tenant_holds_here_too(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    terms = Change({"submit_per_second": 0.01, "submit_burst": 1.0})
    create_tenant(api_database.engine, "slow", terms)
    assert visitor.send(tenant="slow").status_code == 303
    answer = visitor.send(tenant="slow", application="Hire me, soon.")
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 1
    assert "Not submitted." in answer.text
    assert "Hire me, soon." in answer.text


def test_nobody_else_submits(visitor: Visitor, api_database: DatabaseFixture) -> None:
    client = visitor.app.test_client()
    typed = {"tenant": "demo", "candidate": "Ada", "role": "foreign", "application": "x"}
    tenants = {"Authorization": f"Bearer {issue_key(api_database.engine, 'other').key}"}
    assert client.post(PATH, data=typed, headers=tenants).status_code == 403
    assert client.post(PATH, data=typed).status_code == 401
    client.set_cookie(OPERATOR_COOKIE, session_of_key(visitor.app, visitor.key))
    for site in ("cross-site", "same-site", "none"):
        assert client.post(PATH, data=typed, headers={"Sec-Fetch-Site": site}).status_code == 403
    own = {"Sec-Fetch-Site": "same-origin"}
    assert client.post(PATH, data=typed, headers=own).status_code == 303
    assert len(api_database.query("SELECT 1 FROM applications WHERE role = 'foreign'")) == 1


def test_live_parts_stay_the_same_while_nothing_changes(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    job_id = score(api_database, "still", LETTER)
    asked = PageRequest(f"{PATH}/{job_id}", {"application_id": job_id})
    with visitor.app.app_context():
        assert render_parts(CANDIDATE, asked) == render_parts(CANDIDATE, asked)
        ranking = render_parts(LEADERBOARD, PageRequest(PATH))
        assert ranking == render_parts(LEADERBOARD, PageRequest(PATH))
    assert set(ranking) == {"ranking"}


def test_the_pages_walk_along_the_ranking(api_database: DatabaseFixture) -> None:
    api_database.execute(
        "INSERT INTO applications (id, tenant_id, candidate, role, score)"
        " SELECT gen_random_uuid(), 1 + n %% 3, 'c', 'r' || n %% 7, n %% 100"
        " FROM generate_series(1, 20000) AS n"
    )
    api_database.execute("ANALYZE applications")
    for statement in (READ_ROLES, READ_FIRST_TENANT, COUNT_TIED):
        plan = plan_of(api_database, statement, tenant=1, role="r1", score=50)
        assert_walks(plan.replace("tenants_pkey", "leaders_pkey"), "applications_ranking")
    plan = plan_of(api_database, READ_CANDIDATE, id=new_id())
    assert "Seq Scan on applications" not in plan


def test_ordinals() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111, 1012)
    told = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 101st 111th 1012th"
    assert " ".join(ordinal(number) for number in numbers) == told
