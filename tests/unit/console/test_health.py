"""One sentence says whether all is well, and never that it is when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.overview.health import HealthReadings, Level, PoolHealth, judge, reasons

WELL = HealthReadings(pools=(PoolHealth("medium", slots=10), PoolHealth("long", slots=2)))

names = st.text("abcdefghij_-", min_size=1, max_size=12)
counts = st.integers(0, 3) | st.integers(0, 10**7)
pools = st.builds(
    PoolHealth,
    name=names,
    waiting=counts,
    wait_seconds=st.floats(0, 1e6),
    objective_seconds=st.floats(0.1, 3600),
    slots=counts,
    busy=counts,
    served=st.booleans(),
    ended=counts,
    died=counts,
)
readings = st.builds(
    HealthReadings,
    pools=st.lists(pools, max_size=5),
    leads=st.booleans(),
    relieved=st.booleans(),
    broker_seen=st.booleans(),
    circuits=st.dictionaries(names, st.sampled_from(["open", "half_open", "closed"]), max_size=5),
    outages=st.dictionaries(names, names, max_size=3),
    closed_quotas=st.lists(names, max_size=5),
    quarantined=st.lists(names, max_size=5),
    throttled=st.dictionaries(names, counts, max_size=3),
    spiking=counts,
    snapshot_seconds=st.floats(0, 1e6),
)


@given(readings)
def test_all_is_well_exactly_if_there_is_no_reason(seen: HealthReadings) -> None:
    found = list(reasons(seen))
    verdict = judge(seen)
    assert (verdict.level is Level.WELL) == (not found)
    told = [verdict.sentence, *verdict.others] if found else list(verdict.others)
    assert sorted(told) == sorted(reason.sentence for reason in found)


@given(readings)
def test_the_same_readings_give_the_same_verdict_in_whatever_order_they_come(
    seen: HealthReadings,
) -> None:
    turned = replace(
        seen,
        circuits=dict(reversed(seen.circuits.items())),
        outages=dict(reversed(seen.outages.items())),
        closed_quotas=seen.closed_quotas[::-1],
        quarantined=seen.quarantined[::-1],
        throttled=dict(reversed(seen.throttled.items())),
    )
    assert judge(turned) == judge(seen) == judge(seen)


@given(readings)
def test_the_verdict_is_one_sentence_and_so_is_each_other_reason(seen: HealthReadings) -> None:
    verdict = judge(seen)
    for sentence in (verdict.sentence, *verdict.others):
        assert sentence.endswith(".") and (sentence[0].isupper() or sentence[0].isdigit())
        assert ". " not in sentence and "\n" not in sentence and len(sentence) < 160


@given(readings)
def test_the_verdict_is_as_grave_as_the_gravest_reason(seen: HealthReadings) -> None:
    levels = {reason.level for reason in reasons(seen)}
    verdict = judge(seen)
    assert (verdict.level is Level.TROUBLE) == (Level.TROUBLE in levels)


@given(readings)
def test_one_more_trouble_never_makes_it_better(seen: HealthReadings) -> None:
    grades = list(Level)
    worse = replace(seen, leads=False, broker_seen=False)
    assert grades.index(judge(worse).level) >= grades.index(judge(seen).level)
    assert len(judge(worse).others) >= len(judge(seen).others)


def with_pool(**fields: object) -> HealthReadings:
    return replace(WELL, pools=(replace(WELL.pools[0], **fields), WELL.pools[1]))  # type: ignore[arg-type]  # names of fields


@pytest.mark.parametrize(
    ("seen", "level", "part"),
    [
        (WELL, Level.WELL, "workers are ready"),
        (with_pool(busy=3), Level.WELL, "jobs are running"),
        (with_pool(waiting=4, busy=3), Level.WELL, "within their objective"),
        (replace(WELL, leads=False), Level.TROUBLE, "not dispatched"),
        (replace(WELL, leads=False, relieved=True), Level.TROUBLE, "an API process dispatches"),
        (replace(WELL, broker_seen=False), Level.TROUBLE, "broker is not responding"),
        (with_pool(slots=0, waiting=1), Level.TROUBLE, "serves medium, where 1 job is waiting."),
        (with_pool(slots=0, waiting=1200), Level.TROUBLE, "where 1\u202f200 jobs are waiting."),
        (with_pool(slots=0), Level.WATCH, "No worker serves medium; no jobs are queued"),
        (with_pool(slots=0, served=False), Level.WELL, ""),
        (with_pool(wait_seconds=5.0), Level.WELL, ""),
        (with_pool(wait_seconds=6.0), Level.WATCH, "wait longer than their objective of 5 s"),
        (with_pool(wait_seconds=51.0), Level.TROUBLE, "far longer than their objective"),
        (replace(WELL, circuits={"claude": "open"}), Level.WATCH, "is open for claude"),
        (replace(WELL, circuits={"a": "half_open", "b": "half_open"}), Level.WATCH, "a and b"),
        (replace(WELL, circuits={"claude": "closed"}), Level.WELL, ""),
        (
            replace(WELL, circuits={"claude": "open"}, outages={"claude": "no key (401)"}),
            Level.TROUBLE,
            "Calls to claude fail for everybody: no key (401); jobs",
        ),
        (replace(WELL, closed_quotas=list("dcba")), Level.WATCH, "quota of a, b, c and 1 more"),
        (with_pool(ended=1000, died=10), Level.WELL, ""),
        (
            with_pool(ended=1000, died=11),
            Level.WATCH,
            "11 jobs died in medium in the last five minutes.",
        ),
        (replace(WELL, quarantined=["parse"]), Level.WATCH, "fail: parse."),
        (replace(WELL, throttled={"medium": 2}), Level.WATCH, "2 tenants are throttled in medium"),
        (replace(WELL, spiking=1), Level.WATCH, "1 tenant is running far more"),
        (
            replace(WELL, snapshot_seconds=720.0),
            Level.WATCH,
            "transaction has been open for 12 min",
        ),
        (with_pool(busy=10), Level.WELL, "jobs are running"),
        (with_pool(busy=10, waiting=2), Level.WATCH, "All slots of medium are busy, and 2 jobs"),
    ],
)
def test_what_is_said_of_what(seen: HealthReadings, level: Level, part: str) -> None:
    verdict = judge(seen)
    assert verdict.level is level and part in verdict.sentence
    assert verdict.others == ()


def test_the_gravest_reason_comes_first() -> None:
    seen = replace(
        with_pool(wait_seconds=6.0, busy=10, waiting=2),
        circuits={"claude": "open"},
        broker_seen=False,
        leads=False,
    )
    verdict = judge(seen)
    assert "No leading scheduler" in verdict.sentence
    # Of the broker nobody can tell without a leader.
    told = ["Jobs in medium wait", "The circuit", "All slots"]
    assert [other.startswith(begin) for other, begin in zip(verdict.others, told, strict=True)] == [
        True
    ] * 3
