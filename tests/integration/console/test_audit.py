"""The page of the audit log."""

from __future__ import annotations

from tests.support.browsing import Browser, text_of
from tests.support.database_fixture import DatabaseFixture

PAGE = "/console/audit"


def test_an_act_is_shown_with_what_it_changed(operator: Browser, database: DatabaseFixture) -> None:
    operator.do("/console/tenants/demo", weight="7")
    try:
        text = operator.text(PAGE)
        assert "tenant.change demo demo 127.0.0.1 weight" in text
        assert 'Before { "weight": null } After { "weight": 7.0 }' in text
        assert "operator, console" in text
        assert "tenant.change" in operator.parts(PAGE)["acts"]
    finally:
        database.execute("UPDATE tenants SET weight = NULL")


def test_acts_are_filtered_and_paged(operator: Browser, database: DatabaseFixture) -> None:
    database.execute("""
        INSERT INTO audit_log (at, via, who, role, tenant, what, target)
        SELECT now() - make_interval(mins => n), 'command line', 'root', 'operator',
               CASE WHEN n = 60 THEN 'other' ELSE 'demo' END, 'job.cancel', '<b>' || n
        FROM generate_series(1, 60) AS n""")
    page = operator.page(PAGE)
    assert "&lt;b&gt;50" in page and "&lt;b&gt;51<" not in page and "<b>5" not in page
    older = page.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    rest = operator.page(older)
    assert "&lt;b&gt;51" in rest and "&lt;b&gt;60" in rest and ">Newest</a>" in rest
    assert 'rel="next"' not in rest
    only = operator.page(f"{PAGE}?tenant=other&who=root&what=job.cancel")
    assert "&lt;b&gt;60" in only and "&lt;b&gt;59" not in only
    assert "Nothing matches." in text_of(operator.page(f"{PAGE}?who=nobody"))
    assert "&lt;b&gt;1<" in operator.page(f"{PAGE}?cursor=nonsense"), "the first page"
