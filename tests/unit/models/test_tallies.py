"""What a run adds to the counts, and what it does not."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.exposition import histogram
from models.jobs.claim import Claim, JobRef
from models.jobs.states import FailureClass
from models.pools import POOLS
from models.tallies import (
    Tallies,
    TallyKind,
    add_up,
    bin_of,
    observed,
    parse_run_name,
)
from tasks.errors import DependencyFailure, DependencyOutage, Permanent
from tasks.registry import load_types
from tasks.retry.decision import RetryStanding
from tasks.worker.decide import close_run, counts_of
from tasks.worker.outcome import (
    Deferred,
    Failed,
    HandedBack,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Withdrawn,
    outcome_of,
)

ECHO = load_types()["echo"]
SCORE = load_types()["score_application"]
CLAIM = Claim(JobRef("id", 1), 7, "echo", "short", 0, 0, 0, 0, None, datetime.now(UTC), {}, None)
SCORING = CLAIM._replace(type="score_application", pool="medium")

Counts = dict[Any, tuple[int, int]]


def counts(outcome: Outcome, claim: Claim = CLAIM, run_seconds: float = 0.1) -> Counts:
    job_type = SCORE if claim is SCORING or claim.type == SCORE.name else ECHO
    outcome, ending = close_run(claim, outcome, job_type, RetryStanding(), Random(1))
    return dict(counts_of(claim, job_type, outcome, ending, run_seconds).counts)


def test_a_first_run_that_succeeds_is_counted_by_type_and_tenant() -> None:
    assert counts(Succeeded("{}")) == {
        ("type", "echo"): (1, 0),
        ("violation", "echo"): (1, 0),
        ("run", f"short:{bin_of(100_000)}:echo"): (1, 100_000),
        ("retry", "7"): (1, 0),
    }


def test_a_failure_that_is_retried_uses_the_budget() -> None:
    failed = Failed(FailureClass.APP_ERROR, "no")
    seen = counts(failed)
    assert (seen["type", "echo"], seen["retry", "7"]) == ((1, 1), (1, 1))
    seen = counts(failed, CLAIM._replace(attempt=1))
    assert seen["retry", "7"] == (0, 1), "only the first run is a first run"
    seen = counts(failed, CLAIM._replace(attempt=4))
    assert ("retry", "7") not in seen, "the last try: no retry granted"


def test_a_permanent_failure_speaks_against_the_type_and_costs_no_budget() -> None:
    seen = counts(outcome_of(Permanent("no")))
    assert (seen["type", "echo"], seen["retry", "7"]) == ((1, 1), (1, 0))


def test_a_dependency_that_fails_speaks_against_nobody_else() -> None:
    seen = counts(outcome_of(DependencyFailure("claude")), SCORING)
    assert seen == {("dependency", "claude"): (1, 1)}
    assert counts(Succeeded("{}"), SCORING)["dependency", "claude"] == (1, 0)


def test_a_refused_key_is_a_bad_call_and_its_reason_is_counted() -> None:
    refused = outcome_of(DependencyOutage("claude", "the API key\nwas refused (401)"))
    assert counts(refused, SCORING) == {
        ("dependency", "claude"): (1, 1),
        ("outage", "claude\nthe API key was refused (401)"): (1, 1),
    }


def test_a_dependency_is_counted_under_a_name_the_table_can_hold() -> None:
    odd = DependencyFailure("\x00bad\ud800" + "x" * 200)
    [name] = [name for kind, name in counts(outcome_of(odd)) if kind == "dependency"]
    assert name.startswith("bad?") and len(name) <= 100


def test_a_run_beyond_its_pools_bound_is_a_violation() -> None:
    bound = POOLS["short"].bound_seconds
    assert bound is not None
    assert counts(Succeeded("{}"), run_seconds=bound)["violation", "echo"] == (1, 0)
    seen = counts(Succeeded("{}"), run_seconds=bound + 0.01)
    assert seen["violation", "echo"] == (1, 1)
    [name] = [name for kind, name in seen if kind == "run"]
    assert parse_run_name(name) == ("echo", "short", bin_of(1_010_000), True)


@pytest.mark.parametrize(
    "outcome", [Released(), HandedBack(), Snoozed(1.0), Deferred("later"), Withdrawn()]
)
def test_what_was_put_off_handed_back_or_withdrawn_is_no_run(outcome: Outcome) -> None:
    assert counts(outcome) == {}


def test_counts_are_taken_once() -> None:
    tallies = Tallies()
    key = (TallyKind.TYPE, "echo")
    tallies.add_all([(key, (1, 0)), (key, (1, 1))])
    assert tallies.unwritten(*key) == (2, 1)
    assert tallies.take() == {key: (2, 1)}
    assert tallies.unwritten(*key) == (0, 0)


@given(
    st.lists(st.floats(1e-6, 1e6), max_size=30),
    st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=9, unique=True).map(sorted),
)
def test_a_histogram_counts_each_value_once_below_every_bound_that_is_as_high(
    values: list[float], bounds: list[float]
) -> None:
    counts: dict[tuple[TallyKind, str], tuple[int, int]] = {}
    add_up(counts, (observed(TallyKind.RUN_SECONDS, "short", value, bounds) for value in values))
    totals = {name: count for (_, name), count in counts.items()}
    buckets, seconds = histogram(totals, "short", bounds, TallyKind.RUN_SECONDS)
    for bound, below in buckets:
        assert below == sum(value <= float(bound) for value in values)
    assert [float(bound) for bound, _ in buckets] == [*bounds, math.inf]
    assert seconds == pytest.approx(sum(values), abs=1e-5)
    assert histogram(totals, "medium", bounds, TallyKind.RUN_SECONDS)[0][-1] == ("+Inf", 0)
