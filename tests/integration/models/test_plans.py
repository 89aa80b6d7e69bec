"""Every hot statement walks the index it was written for, however long the table has grown."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from app.admission import IdempotencyKey, Submission, SubmissionGroup
from app.api.routes.leaderboard import READ_FIRST_PAGE, READ_PAGE
from app.console.overview.readings import READ_POOLS as READ_OVERVIEW
from app.console.workers.page import READ_RUNNING
from app.policy.lane_heads import OPEN
from app.reads.demand import READ_FLIGHT, READ_TENANT_DEPTHS, READ_TENANT_LANES, READ_WAITS, Parked
from app.reads.gauges import READ_AGES, READ_DEAD_LETTERS, READ_DUE_AGES, READ_TROUBLE
from app.reads.ranks import READ_RANKS
from app.reads.rivals import READ_RIVALS
from app.reads.views import READ_APPLICATIONS
from app.reads.waits import COUNT_AHEAD, COUNT_FREE, READ_FACTS, READ_OWN, READ_PLACE
from app.scheduler.dispatching.held_back import READ_HOLDS
from app.scheduler.dispatching.pool_queues import READ_IN_FLIGHT, SWEEP
from app.scheduler.dispatching.pools import READ_HELD, READ_IN_SLICES, READ_POOLS
from app.scheduler.dispatching.reconciler import READ_CHARGES
from app.scheduler.maintenance.collector import COUNT_BYTES, FIND_ORPHANS
from app.scheduler.maintenance.forecaster import FIND_SAMPLE, JUDGE
from app.scheduler.maintenance.recorder import RECORD
from app.scheduler.maintenance.retirer import (
    RETIRE_EVENTS,
    RETIRE_KEYS,
    RETIRE_REFUSALS,
    RETIRE_TALLIES,
)
from app.scheduler.protection.circuits import READ_CIRCUITS, READ_OTHERS, READ_OUTAGES, READ_TENANTS
from app.scheduler.protection.classifier import READ_RUNS
from app.scheduler.protection.restrictions import READ_HOURS, READ_SPENT, READ_WINDOWS
from app.scheduler.relief import FIND_LANES
from app.scheduler.relief import READ_IN_FLIGHT as READ_FLYING
from models.jobs.admit import admit_group
from models.jobs.cancel import CANCEL
from models.jobs.checkpoint import Saving, save_group
from models.jobs.claim import CLAIM, JobRef
from models.jobs.dispatch import MARK, RELIEVE, stretch_arrays
from models.jobs.expire import EXPIRE
from models.jobs.heartbeat import BEAT, NOTE_BEGUN, READ_CANCELLED, REPORT
from models.jobs.ids import BELOW_ALL, new_id
from models.jobs.locked import FIND_LOCKED
from models.jobs.promote import FIND_DUE, PROMOTE_BY_TENANT_IF, PROMOTE_IF
from models.jobs.reap import EXPIRE_LEASES, EXPIRE_UNCLAIMED, FIND_LOST, FIND_UNCLAIMED, REAP
from models.jobs.release import RELEASE
from models.jobs.replay import replay_dead
from models.jobs.retire import RETIRE_JOBS
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.states import JobStatus
from models.leadership import STILL_LEADER
from tasks.registry import projections_of
from tasks.watchdog import lost_runs
from tests.support.database_fixture import DatabaseFixture
from tests.support.plans import (
    FILL,
    GROWING,
    assert_walks,
    indexes_in,
    pages_read,
    plan_of,
    plan_of_call,
    refs,
)


@pytest.fixture(scope="module")
def filled(api_database: DatabaseFixture) -> DatabaseFixture:
    """50,000 jobs and what belongs to them, with fresh statistics."""
    with api_database.engine.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        for sql in FILL:
            connection.exec_driver_sql(sql, ())
        connection.exec_driver_sql("RESET statement_timeout")
    return api_database


def marking(tenants: int, room: int, pool: str = "medium") -> dict[str, Any]:
    return {
        "pool": pool,
        "epoch": 1,
        "slice": "",
        "tenants": list(range(1, tenants + 1)),
        "lanes": [""] * tenants,
        "rooms": [room] * tenants,
        "most": room,
        "jobs": [room] * tenants,
        **stretch_arrays([[(2, BELOW_ALL, OPEN), (1, BELOW_ALL, OPEN)]] * tenants),
    }


#: As many as gather in a group: one, some, and the largest group there is.
GROUPS = pytest.mark.parametrize("size", [1, 20, 500])


@pytest.mark.parametrize(("tenants", "room"), [(1, 1), (1, 500), (20, 20), (500, 1)])
def test_mark_walks_each_lane_from_its_head(
    filled: DatabaseFixture, tenants: int, room: int
) -> None:
    plan = plan_of(filled, MARK, **marking(tenants, room))
    assert_walks(plan, "jobs_line", "jobs_pkey")
    assert plan.count("Sort Key") <= 1, "only what the lanes gave is put in order"


def test_a_mark_costs_the_same_however_long_the_line_is(filled: DatabaseFixture) -> None:
    longer = pages_read(filled, MARK, **marking(1, 3))
    shorter = pages_read(filled, MARK, **marking(1, 3, "short"))
    assert longer <= 1.5 * shorter, "33 times as many wait"


def test_lanes_are_found_one_step_each(filled: DatabaseFixture) -> None:
    asked = {"pools": ["medium"], "after": [-1]}
    assert_walks(plan_of(filled, SWEEP, **asked), "jobs_line")
    assert pages_read(filled, SWEEP, **asked) < 2500, "10,000 wait in 100 lanes of 3 priorities"


def test_relief_looks_at_the_heads_of_lanes_and_at_what_is_in_flight(
    filled: DatabaseFixture,
) -> None:
    assert_walks(plan_of(filled, RELIEVE, **marking(20, 3)), "jobs_line", "jobs_pkey")
    looking = {"pool": "medium", "tenant_id": 3, "dependency": "", "most": 200}
    plan = plan_of(filled, FIND_LANES, **looking)
    assert "jobs_line" in indexes_in(plan) and "Seq Scan on jobs" not in plan, plan
    assert pages_read(filled, FIND_LANES, **looking) < 500, "10,000 wait in 100 lanes"
    plan = plan_of(filled, READ_FLYING, pool="medium")
    assert "jobs_in_flight" in plan and "Seq Scan on jobs" not in plan, plan


def test_why_a_job_waits_is_told_by_its_stretch_of_the_line(filled: DatabaseFixture) -> None:
    job_id, tenant_id = filled.query(
        "SELECT id, tenant_id FROM jobs WHERE status = 'queued' AND pool = 'medium' LIMIT 1"
    )[0]
    plan = plan_of(filled, READ_FACTS, id=job_id)
    assert {"jobs_pkey", "jobs_ended"} <= indexes_in(plan) and "Seq Scan on jobs" not in plan, plan
    whose = {"pool": "medium", "tenant_id": tenant_id}
    own = plan_of(filled, READ_OWN, **whose)
    assert "jobs_in_flight" in own and "Seq Scan on jobs" not in own, own
    assert pages_read(filled, READ_RIVALS, **whose) < 500, "10,000 wait in 100 lanes"
    asked = {"id": job_id, "dependency": "", **whose}
    assert_walks(plan_of(filled, COUNT_AHEAD, priority=0, **asked), "jobs_line")
    assert_walks(plan_of(filled, READ_PLACE, id=job_id), "jobs_pkey", "jobs_line")
    free = plan_of(filled, COUNT_FREE, pool="medium", slice="")
    assert "jobs_in_flight" in free and "Seq Scan on jobs" not in free, free
    sampled = plan_of(filled, FIND_SAMPLE, pool="medium", chance=0.5)
    assert_walks(sampled, "jobs_line")
    assert pages_read(filled, FIND_SAMPLE, pool="medium", chance=0.5) < 500, "10,000 wait"
    judged = plan_of(filled, JUDGE, epoch=1)
    assert "Seq Scan on jobs" not in judged, judged


def test_the_overview_and_its_samples_go_by_counters_and_the_ends_of_indexes(
    filled: DatabaseFixture,
) -> None:
    asked = {"pools": ["short", "medium", "long"], "after": [0, 0, 0]}
    for sql, *indexes in (
        (RECORD, "jobs_line", "jobs_due"),
        (READ_OVERVIEW, "jobs_line", "jobs_due", "jobs_dead"),
    ):
        plan = plan_of(filled, sql, **asked, epoch=1)
        found = {name for name in indexes_in(plan) if name.startswith("jobs_")}
        assert found == set(indexes) and "Seq Scan on jobs" not in plan, plan
    assert pages_read(filled, READ_OVERVIEW, **asked) < 5_000, "10,000 wait in 600 lanes"


def test_what_workers_run_is_read_along_what_is_in_flight(filled: DatabaseFixture) -> None:
    plan = plan_of(filled, READ_RUNNING)
    assert "jobs_in_flight" in indexes_in(plan) and "Seq Scan on jobs" not in plan, plan


def test_lost_messages_are_found_along_what_is_in_flight(filled: DatabaseFixture) -> None:
    plan = plan_of(filled, FIND_UNCLAIMED, pools=["short", "medium"], seconds=2.0)
    assert_walks(plan, "jobs_in_flight")
    queue = {"pool": "medium", "slice": "", "seconds": 2.0, "epoch": 1}
    assert_walks(plan_of(filled, EXPIRE_UNCLAIMED, **queue), "jobs_in_flight", "jobs_pkey")


def test_shares_are_reconciled_with_what_is_in_flight_and_used(filled: DatabaseFixture) -> None:
    plan = plan_of(
        filled,
        READ_CHARGES,
        types=["echo"],
        seconds=[0.1],
        pools=["medium"],
        defaults=[60.0],
        active_pools=["medium"],
        active=[1],
    )
    assert_walks(plan, "jobs_in_flight")


def test_promote_walks_the_due(filled: DatabaseFixture) -> None:
    plan = plan_of(
        filled,
        PROMOTE_IF.format(condition=STILL_LEADER),
        pool="medium",
        room=100,
        most=100,
        lanes=[],
        tenants=[],
        free_full=False,
        epoch=1,
    )
    assert_walks(plan, "jobs_due", "jobs_pkey")
    by_tenant = {"pool": "medium", "room": 100, "after": -1, "lanes": [], "tenants": []}
    by_tenant |= {"free_full": False, "epoch": 1}
    statement = PROMOTE_BY_TENANT_IF.format(condition=STILL_LEADER)
    assert_walks(plan_of(filled, statement, **by_tenant), "jobs_due_by_tenant", "jobs_pkey")
    pools = ["short", "medium", "long"]
    assert_walks(plan_of(filled, FIND_DUE, pools=pools), "jobs_due")
    assert pages_read(filled, FIND_DUE, pools=pools) <= 20, "one step along the index for each"


def test_the_reaper_looks_at_what_is_in_flight(filled: DatabaseFixture) -> None:
    judged = {"epoch": 1, "silent": ["w1"], "early": True, "stuck": ["w2"]}
    assert_walks(
        plan_of(filled, FIND_LOST, **judged), "jobs_in_flight", "checkpoints_pkey", "attempts_pkey"
    )


@GROUPS
def test_reap_finds_its_rows_by_key(filled: DatabaseFixture, size: int) -> None:
    lost = refs(filled, "running", size)
    count = len(lost["ids"])
    plan = plan_of(
        filled,
        REAP,
        **lost,
        statuses=["queued"] * count,
        tries_spent=[0] * count,
        crashed=[True] * count,
        lost_claims=[False] * count,
        runs=[1.5] * count,
        delays=[0.0] * count,
        error_classes=["WORKER_CRASH"] * count,
        error_messages=["lost"] * count,
    )
    assert_walks(plan, "jobs_pkey")


@GROUPS
def test_claim_finds_its_rows_by_key(filled: DatabaseFixture, size: int) -> None:
    held = refs(filled, "dispatched", size)
    never = [False] * len(held["ids"])
    plan = plan_of(filled, CLAIM, worker="w1", again=never, waits=never, **held)
    assert_walks(plan, "jobs_pkey", "attempts_pkey")


@GROUPS
def test_beat_and_report_find_their_rows_by_key(filled: DatabaseFixture, size: int) -> None:
    held = refs(filled, "running", size)
    assert_walks(plan_of(filled, BEAT, **held, worker="w1"), "jobs_pkey")
    begun = {**held, "worker": "w1", "ran": [1.5] * size}
    assert_walks(plan_of(filled, NOTE_BEGUN, **begun), "jobs_pkey")
    tokens = {"tokens_in": [1] * size, "tokens_out": [1] * size}
    reports = {**held, **tokens, "worker": "w1", "progress": ["{}"] * size}
    assert_walks(plan_of(filled, REPORT, **reports), "jobs_pkey")
    assert_walks(plan_of(filled, FIND_LOCKED, ids=held["ids"]), "jobs_pkey")


def test_cancelled_runs_are_found_without_a_look_at_the_others(filled: DatabaseFixture) -> None:
    assert_walks(plan_of(filled, READ_CANCELLED, worker="w1"), "jobs_cancelling")


@GROUPS
def test_a_parent_finds_the_runs_of_its_children_by_key(filled: DatabaseFixture, size: int) -> None:
    held = {**refs(filled, "running", size), "parent": "w1"}
    for statement in (EXPIRE_LEASES, lost_runs.READ_RUNS):
        plan = plan_of(filled, statement, **held)
        assert "jobs_pkey" in indexes_in(plan) and "Seq Scan on jobs" not in plan, plan


@GROUPS
def test_release_finds_its_rows_by_key(filled: DatabaseFixture, size: int) -> None:
    assert_walks(plan_of(filled, RELEASE, **refs(filled, "dispatched", size)), "jobs_pkey")


@GROUPS
@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD])
def test_settle_finds_its_rows_and_their_applications_by_key(
    filled: DatabaseFixture, size: int, status: JobStatus
) -> None:
    ending = Ending(status, result='{"score": 50, "rationale": "because"}')
    group = [
        Settlement(JobRef(job_id, 1), ending, 1.5)
        for job_id in refs(filled, "running", size)["ids"]
    ]
    statement = settle_statement(projections_of(filled.types.values()))
    plan = plan_of_call(filled, lambda: settle_group(filled.engine, statement, "w1", group))
    assert_walks(plan, "jobs_pkey", "applications_pkey")


@GROUPS
def test_a_checkpoint_finds_its_rows_by_key(filled: DatabaseFixture, size: int) -> None:
    group = [
        Saving(JobRef(job_id, 1), "{}", None) for job_id in refs(filled, "running", size)["ids"]
    ]
    plan = plan_of_call(filled, lambda: save_group(filled.engine, "w1", group))
    assert_walks(plan, "jobs_pkey", "checkpoints_pkey")


@GROUPS
@pytest.mark.parametrize("key", [None, IdempotencyKey("again", b"digest")])
def test_admit_looks_at_no_other_job(
    filled: DatabaseFixture, size: int, key: IdempotencyKey | None
) -> None:
    group = [
        SubmissionGroup(
            (Submission(new_id(), 1, "echo", "medium", "{}", candidate="Ada", role="x"),), key
        )
        for _ in range(size)
    ]
    plan = plan_of_call(filled, lambda: admit_group(filled.engine, group, express=True))
    assert not re.search(rf"Scan (using|on) ({GROWING})\b", plan), plan


@pytest.mark.parametrize("status", ["queued", "succeeded"])
def test_cancel_finds_its_row_by_key(filled: DatabaseFixture, status: str) -> None:
    (job_id,) = refs(filled, status, 1)["ids"]
    assert_walks(plan_of(filled, CANCEL, id=job_id, tenant=1), "jobs_pkey")


@GROUPS
def test_replay_finds_its_rows_by_key_or_among_the_dead(filled: DatabaseFixture, size: int) -> None:
    dead = refs(filled, "dead", size)["ids"]
    plan = plan_of_call(filled, lambda: replay_dead(filled.engine, 1, dead))
    assert indexes_in(plan) <= {"jobs_pkey", "jobs_dead"}, plan
    assert not re.search(rf"Seq Scan on ({GROWING})\b", plan), plan
    late = datetime(2100, 1, 1, tzinfo=UTC)
    plan = plan_of_call(filled, lambda: replay_dead(filled.engine, 1, before=late, limit=size))
    assert_walks(plan, "jobs_pkey", "jobs_dead")


@GROUPS
@pytest.mark.parametrize("status", ["queued", "succeeded"])
def test_poll_finds_its_rows_by_key(filled: DatabaseFixture, size: int, status: str) -> None:
    plan = plan_of(filled, READ_APPLICATIONS, ids=refs(filled, status, size)["ids"])
    assert indexes_in(plan) - {"tenants_pkey"} == {"jobs_pkey", "applications_pkey"}, plan
    assert not re.search(rf"Seq Scan on ({GROWING})\b", plan), plan


@GROUPS
def test_ranks_are_counted_along_the_ranking(filled: DatabaseFixture, size: int) -> None:
    plan = plan_of(
        filled,
        READ_RANKS,
        tenants=[1] * size,
        roles=["general"] * size,
        scores=[number / 100 for number in range(0, 10_000, 10_000 // size)],
    )
    assert_walks(plan, "applications_ranking")


def test_first_page_of_the_leaderboard_walks_the_ranking(filled: DatabaseFixture) -> None:
    plan = plan_of(filled, READ_FIRST_PAGE, tenant=1, role="general", limit=51)
    assert_walks(plan, "applications_ranking")
    assert "Sort" not in plan


@pytest.mark.parametrize("score", ["99.99", "50.00", "0.01"])
def test_later_page_of_the_leaderboard_walks_the_ranking_from_where_it_is(
    filled: DatabaseFixture, score: str
) -> None:
    plan = plan_of(filled, READ_PAGE, tenant=1, role="general", limit=51, score=score, id=new_id())
    assert_walks(plan, "applications_ranking")
    assert "Filter" not in plan  # both walks start and end in the index


def test_metrics_are_read_from_the_ends_of_indexes(filled: DatabaseFixture) -> None:
    pools = ["short", "medium", "long"]
    assert_walks(plan_of(filled, READ_AGES, pools=pools, after=[0, 0, 0]), "jobs_line")
    lanes = {"pools": ["medium"] * 2, "capped": [7, 8], "lanes": ["claude", "maps"]}
    assert_walks(plan_of(filled, READ_TENANT_LANES, **lanes), "jobs_line")
    parked = Parked({"maps": 0}, {"medium": [7]}, {"medium": [8]})
    waits = plan_of(filled, READ_WAITS, pools=["medium"], after=[0], **parked.in_pool("medium"))
    assert indexes_in(waits) - {"tenants_pkey"} == {"jobs_line"}, waits
    flight = plan_of(filled, READ_FLIGHT)
    assert indexes_in(flight) - {"tenants_pkey"} <= {"jobs_in_flight"}, flight
    assert not re.search(rf"Seq Scan on ({GROWING})\b", waits + flight), waits + flight
    assert_walks(plan_of(filled, READ_DUE_AGES, pools=pools), "jobs_due")
    assert_walks(plan_of(filled, READ_DEAD_LETTERS), "jobs_dead")
    assert "tallies_pkey" in indexes_in(plan_of(filled, READ_TROUBLE))


def test_late_jobs_are_found_by_their_deadline(filled: DatabaseFixture) -> None:
    assert "jobs_deadline" in indexes_in(plan_of(filled, EXPIRE, epoch=1))


def test_the_scheduler_counts_pools_and_holds_without_counting_jobs(
    filled: DatabaseFixture,
) -> None:
    plan = plan_of(filled, READ_POOLS, pools=["medium"])
    assert set(re.findall(r"Scan using (\w+) on jobs", plan)) <= {"jobs_in_slice"}, plan
    assert "Scan on jobs" not in plan
    for sql, parameters in (
        (READ_HELD, {"lanes": ["maps"]}),
        (READ_TENANT_DEPTHS, {"pools": ["medium"], "capped": [1]}),
        (READ_IN_FLIGHT, {"pool": "medium", "ids": [1, 2]}),
    ):
        assert not re.search(r"Scan (using|on) jobs", plan_of(filled, sql, **parameters))
    assert_walks(plan_of(filled, READ_IN_SLICES), "jobs_in_slice")
    assert indexes_in(plan_of(filled, READ_HOLDS)) == {"jobs_in_flight"}
    plan = plan_of(filled, READ_OTHERS, dependency="claude", failing=[1, 2])
    assert "jobs_in_flight" in indexes_in(plan), plan


def test_the_warden_reads_no_older_counts_than_it_needs(filled: DatabaseFixture) -> None:
    for plan in (
        plan_of(filled, READ_WINDOWS, kind="crash", step=60, seconds=60.0),
        plan_of(filled, READ_CIRCUITS, dependencies=["claude", "maps"]),
        plan_of(filled, READ_HOURS),
        plan_of(filled, READ_RUNS, kinds=["run", "tenant_run"]),
        plan_of(filled, READ_SPENT),
        plan_of(filled, READ_OUTAGES),
        plan_of(filled, READ_TENANTS, dependency="claude", seconds=60.0),
    ):
        assert "tallies_pkey" in indexes_in(plan), plan
        assert not re.search(r"Seq Scan on tallies", plan), plan


def test_the_retirer_walks_from_the_oldest(filled: DatabaseFixture) -> None:
    plan = plan_of(
        filled,
        RETIRE_JOBS,
        cursor="00000000-0000-0000-0000-000000000000",
        finished=60.0,
        dead=60.0,
        epoch=1,
    )
    assert_walks(plan, "jobs_pkey", "attempts_pkey", "checkpoints_pkey", "applications_pkey")
    for sql, index in (
        (RETIRE_EVENTS, "events_pkey"),
        (RETIRE_KEYS, "idempotency_keys_age"),
        (RETIRE_TALLIES, "tallies_pkey"),
    ):
        plan = plan_of(filled, sql, seconds=60.0, keys=60.0, epoch=1)
        assert index in indexes_in(plan), plan
        assert not re.search(rf"Seq Scan on ({GROWING})\b", plan), plan
    filled.execute(
        "INSERT INTO refusals SELECT n, current_date - days, 'X', 1"
        " FROM generate_series(1, 50) AS n, generate_series(1, 100) AS days"
    )
    filled.execute("ANALYZE refusals")
    plan = plan_of(filled, RETIRE_REFUSALS, tenant_id=7, day="2026-01-01", code="", epoch=1)
    assert "refusals_pkey" in indexes_in(plan) and "Seq Scan on refusals" not in plan, plan


def test_orphans_are_looked_up_by_key(filled: DatabaseFixture) -> None:
    jobs = refs(filled, "succeeded", 200)["ids"]
    plan = plan_of(filled, FIND_ORPHANS, keys=jobs, jobs=jobs, epoch=1)
    assert_walks(plan, "jobs_pkey", "checkpoints_pkey")
    plan = plan_of(filled, COUNT_BYTES, jobs=jobs, bytes=[1] * len(jobs))
    assert_walks(plan, "jobs_pkey")
