"""Which counts of tenants a worker writes: of those that fail and of the busiest, never of all."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from models.jobs.claim import Claim, JobRef
from models.jobs.states import FailureClass
from models.tallies import MOST_ROWS, Tallies, TallyKind, parse_tenant_name, tenant_name
from models.tenant_tallies import (
    KEEP_SECONDS,
    MOST_BUSY,
    MOST_WATCHED,
    WATCH_SECONDS,
    RunCounts,
    RunTallies,
    TenantTallies,
    TenantType,
)
from tasks.registry import load_types
from tasks.retry.decision import RetryStanding
from tasks.worker.decide import close_run, counts_of
from tasks.worker.outcome import Failed, Outcome, Snoozed, Succeeded

SCORE = load_types()["score_application"]
CLAIM = Claim(
    JobRef("id", 1), 7, SCORE.name, "medium", 0, 0, 0, 0, None, datetime.now(UTC), {}, None
)


def counts(outcome: Outcome, tenant_id: int = 7, run_seconds: float = 0.1) -> RunCounts:
    claim = CLAIM._replace(tenant_id=tenant_id)
    outcome, ending = close_run(claim, outcome, SCORE, RetryStanding(), Random(1))
    return counts_of(claim, SCORE, outcome, ending, run_seconds)


GOOD = Succeeded("{}")
BAD = Failed(FailureClass.APP_ERROR, "no")
DOWN = Failed(FailureClass.DEPENDENCY, "no", dependency="claude")


def run(tenant_id: int, bad: bool = False, job_type: str = "echo") -> RunCounts:
    own = [((TallyKind.TYPE, job_type), (1, int(bad))), ((TallyKind.DEPENDENCY, "claude"), (1, 0))]
    return RunCounts(own, TenantType(job_type, tenant_id), bad)


def tenants(taken: object) -> set[int]:
    return {parse_tenant_name(name)[1] for _, name in taken}  # type: ignore[attr-defined]


def test_a_run_is_counted_for_its_tenant_as_for_all() -> None:
    def own(outcome: Outcome) -> dict[tuple[str, str], tuple[int, int]]:
        tallies = TenantTallies()
        tallies.add(counts(outcome), 0.0)
        return {(kind.value, name): count for (kind, name), count in tallies.take(0.0).items()}

    assert own(BAD) == {
        ("tenant_dependency", "claude\n7"): (1, 0),
        ("tenant_type", "score_application\n7"): (1, 1),
        ("tenant_run", "medium:26:score_application\n7"): (1, 100_000),
    }
    assert own(DOWN) == {("tenant_dependency", "claude\n7"): (1, 1)}
    assert own(Snoozed(1.0)) == {}


def test_what_is_bad_is_a_failure_a_long_run_or_a_failed_call() -> None:
    assert not counts(GOOD).bad
    assert counts(BAD).bad and counts(DOWN).bad and counts(GOOD, run_seconds=61.0).bad


def test_tenants_that_fail_are_written_with_their_good_runs_and_small_ones_are_not() -> None:
    tallies = TenantTallies()
    for tenant_id in range(1, MOST_BUSY + 1):
        for _ in range(5):
            tallies.add(run(tenant_id), 0.0)
    tallies.add(run(98), 0.0)
    tallies.add(run(99), 0.0)
    assert tenants(tallies.take(0.0)) == set(range(1, MOST_BUSY + 1)), "the busiest"
    tallies.add(run(99, bad=True), 2.0)
    taken = tallies.take(2.0)
    assert tenants(taken) == {99}
    assert taken[TallyKind.TENANT_TYPE, tenant_name("echo", 99)] == (2, 1), "and what it did before"
    assert taken[TallyKind.TENANT_DEPENDENCY, tenant_name("claude", 99)] == (1, 0), "but old calls"
    tallies.add(run(99), 4.0)
    assert tenants(tallies.take(4.0)) == {99}, "it is watched"
    for tenant_id in (1, 2, 3, 4, 99):
        tallies.add(run(tenant_id), WATCH_SECONDS + 3.0)
    assert 99 not in tenants(tallies.take(WATCH_SECONDS + 3.0)), "for an hour"


def test_what_is_kept_is_forgotten_after_a_while() -> None:
    tallies = TenantTallies()
    for tenant_id in range(1, 10):
        tallies.add(run(tenant_id), 1.0)
    tallies.take(KEEP_SECONDS + 1.0)
    assert not tallies._parts


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=3000))
def test_rows_are_bounded_whatever_tenants_do(runs: list[tuple[int, bool]]) -> None:
    tallies = TenantTallies()
    for tenant_id, bad in runs:
        tallies.add(run(tenant_id, bad), 0.0)
    assert len(tenants(tallies.take(0.0))) <= MOST_WATCHED + MOST_BUSY


def test_ten_thousand_tenants_are_written_a_thousand_at_a_time_and_none_is_lost() -> None:
    tallies, seen = Tallies(), []
    keys = [(TallyKind.RETRY, str(tenant_id)) for tenant_id in range(10_000)]
    tallies.add_all([(key, (1, 0)) for key in keys])
    tallies.add_all([((TallyKind.TYPE, "echo"), (9, 9))])
    first = tallies.take()
    assert first.pop((TallyKind.TYPE, "echo")) == (9, 9), "what concerns all comes at once"
    assert tallies.unwritten(*keys[-1]) == (1, 0)
    seen += first
    while taken := tallies.take():
        assert len(taken) <= MOST_ROWS
        seen += taken
    assert seen == keys


def test_a_worker_s_counts_hold_both() -> None:
    tallies = RunTallies()
    tallies.add_run(counts(BAD))
    taken = tallies.take()
    assert taken[TallyKind.TYPE, "score_application"] == (1, 1)
    assert taken[TallyKind.TENANT_TYPE, "score_application\n7"] == (1, 1)
    assert tallies.take() == {}
