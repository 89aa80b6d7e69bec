"""The page of circuits and quotas: what holds jobs back, in words."""

from __future__ import annotations

from tests.support.browsing import Browser
from tests.support.database_fixture import DatabaseFixture

PAGE = "/console/limits"


def test_without_trouble_the_page_says_so(operator: Browser, database: DatabaseFixture) -> None:
    text = operator.text(PAGE)
    assert "claude closed never 0 Calls are allowed." in text
    assert "No quotas declared, and none reported by a dependency." in text
    assert "No active restrictions." in text
    assert "No job has run yet." in text
    assert "medium closed: jobs are queued none –" in text
    assert "(relief)" not in text


def test_an_open_circuit_is_told_with_what_waits_behind_it(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute("""
        INSERT INTO circuits (dependency, state, changed_at)
        VALUES ('claude', 'open', '2030-01-31T12:00:00Z')""")
    database.submit(dependency="claude")
    database.submit()
    page = operator.get(PAGE).text
    assert "badge open" in page
    until = "Not called until 2030-01-31 12:01:00 UTC; jobs that need it wait."
    assert f"1 {until}" in operator.text(PAGE)
    assert '<time datetime="2030-01-31T12:01:00.000Z"' in page
    database.execute("UPDATE circuits SET reason = 'the API key was refused (401)'")
    assert f"claude: the API key was refused (401). {until}" in operator.text(PAGE)
    database.execute("UPDATE circuits SET state = 'half_open'")
    assert "Only probes are let through; other jobs wait." in operator.text(PAGE)


def test_a_quota_is_told_as_declared_learned_and_left(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute("""
        INSERT INTO quotas (dependency, requests_per_minute, reading, read_at, closed_until,
                            refused, calls, tokens_in, tokens_out)
        VALUES ('claude', 60, '{"requests": [50, 12, 30], "tokens_in": [80000, 4000, 9]}', now(),
                now() + interval '1 hour', 7, 340, 1000, 20)""")
    text = operator.text(PAGE)
    assert "claude calls 60 50 12 rate limited; resumes" in text
    assert "tokens in – 80 000 4 000" in text
    assert "7 340 calls, 1 000 tokens in, 20 out" in text
    database.execute("UPDATE quotas SET closed_until = now() - interval '1 second'")
    assert "accepting calls" in operator.text(PAGE)


def test_verdicts_name_whom_they_are_on_and_what_they_mean(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute("""
        INSERT INTO verdicts (kind, name, tenant_id, pool, detail) VALUES
            ('quarantine', '<u>odd</u>', 0, '', '{"runs": 80, "failed": 70}'),
            ('tenant_quarantine', 'parse', 2, '', '{"runs": 60, "failed": 50}'),
            ('retry_budget', '', 2, '', '{"first_runs": 5, "retries": 21}'),
            ('throttle', '', 2, 'medium', '{"pool": "medium", "crashes": 6}'),
            ('spike', '', 1, '', '{"submissions": 4000, "usual": 12}'),
            ('throttle', '', 999, 'long', '"no object"'), ('spike', '', 998, '', '[]')""")
    text, page = operator.text(PAGE), operator.get(PAGE).text
    assert "type <u>odd</u>" in text and "<u>" not in page
    assert "70 of 80 runs failed within an hour: its jobs get 2 attempts" in text
    assert "type parse of tenant other" in text and "50 of 60 runs of this tenant failed" in text
    assert "21 retries of 5 jobs within ten minutes: its failed jobs become dead letters" in text
    assert "tenant other" in text and "6 workers of medium were lost to jobs" in text
    assert "tenant demo" in text and "4000 jobs submitted in this hour, 12 are usual." in text
    assert "tenant 999" in text and "? workers of long were lost" in text


def test_types_lanes_and_predictions(operator: Browser, database: DatabaseFixture) -> None:
    database.execute("""
        INSERT INTO job_types (type, declared_pool, pool, moved_at, mean_seconds, p95_seconds, runs)
        VALUES ('echo', 'short', 'short', NULL, 0.002, 0.004, 12000),
               ('report', 'short', 'medium', now(), 2.4, 7.1, 812)""")
    database.execute("""
        INSERT INTO express_lanes (pool, credit, granted_at)
        VALUES ('short', 10, now()), ('medium', 0, now()), ('long', 5, now() - interval '2 min')""")
    database.execute("""
        INSERT INTO tallies (kind, name, bucket, total, amount)
        VALUES ('forecast', 'medium', now() - interval '1 minute', 20, 3400),
               ('forecast', 'long', now() - interval '2 hours', 20, 3400)""")
    database.execute("""
        INSERT INTO leaders (role, holder, epoch, expires_at)
        VALUES ('relief', 'api@<here>', 1, now() + interval '1 minute')""")
    text = operator.text(PAGE)
    assert "report short medium 2.4 s 7.1 s 812" in text
    assert text.index("report short") < text.index("echo short"), "what was moved comes first"
    assert "short open: jobs start at once none –" in text
    assert "medium closed: jobs are queued 20 17 %" in text
    assert "long closed: jobs are queued none –" in text
    assert "api@<here> dispatches in its place (relief)" in text


def test_the_parts_live_and_stay_the_same_while_nothing_changes(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute("INSERT INTO express_lanes (pool, credit) VALUES ('short', 10)")
    before = operator.parts(PAGE)
    database.execute("UPDATE express_lanes SET credit = 9, granted_at = now()")
    assert operator.parts(PAGE) == before
    assert before.keys() == {"circuits", "quotas", "verdicts", "types", "lanes"}


def test_only_operators_come_here(operator: Browser) -> None:
    assert Browser(operator.app).get(PAGE).headers["Location"].startswith("/console/sign-in")
