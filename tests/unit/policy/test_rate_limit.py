"""The token bucket: what any number of processes can get out of it, and how often they ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.policy.rate_limit import PERIOD_SECONDS, LeasedTokens, Limit, limit_of
from loadtest.fakes.token_bucket import lease, take

RATES = st.sampled_from([0.5, 1.0, 3.0, 10.0, 33.3, 100.0, 1000.0])
EXACT = 1e-3


@dataclass
class Town:
    """One bucket and the processes that take from it."""

    limit: Limit
    processes: int
    now: float = 1000.0
    spent_until: float = 0.0
    chance: Random = field(default_factory=lambda: Random(7))
    #: Moment and tokens of each request that passed.
    passed: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    #: Moments of the asks of each process.
    asked: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.purses = [LeasedTokens(self.limit) for _ in range(self.processes)]
        self.asked = [[] for _ in self.purses]

    def request(self, process: int, tokens: int = 1, latency: float = 0.0) -> bool:
        """One request of that many submissions; the bucket answers after ``latency``."""
        purse = self.purses[process]
        passes = purse.spend(self.now, tokens)
        if not passes and purse.wait_seconds(self.now, tokens) <= 0:
            ask = purse.ask(self.now, tokens)
            self.asked[process].append(self.now)
            self.spent_until, grant = lease(
                self.spent_until, self.now + latency / 2, self.limit, ask.need, ask.want
            )
            passes = purse.receive(ask, grant, self.now + latency, self.chance)
        if passes:
            self.passed.append((self.now, tokens))
        else:
            self.refused += 1
        return passes

    @property
    def admitted(self) -> int:
        return sum(tokens for _, tokens in self.passed)


@given(
    rate=RATES,
    burst=st.none() | st.just(1.0) | st.floats(1, 500),
    storms=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.0, 0.3, 2.0]) | st.floats(0, 0.2, allow_subnormal=False),
            st.integers(0, 2),
            st.just(1) | st.just(1) | st.integers(1, 40),
            st.integers(1, 60),
        ),
        max_size=30,
    ),
)
# One process keeps some of its lease while the bucket fills again.
@example(rate=100.0, burst=25.0, storms=[(0.0, 0, 1, 10), (2.0, 1, 1, 60), (0.0, 0, 1, 60)])
def test_no_window_sees_more_than_the_burst_and_its_time(
    rate: float, burst: float | None, storms: list[tuple[float, int, int, int]]
) -> None:
    town = Town(limit_of(rate, burst), 3)
    for seconds, process, tokens, times in storms:
        town.now += seconds
        for _ in range(times):
            town.request(process, tokens)
    # One request may be larger than the burst, if the bucket is full.
    most = max([town.limit.burst, *(tokens for _, tokens in town.passed)])
    for begin in {moment for moment, _ in town.passed}:
        seen = 0
        for moment, tokens in town.passed:
            if moment >= begin:
                seen += tokens
                assert seen <= most + rate * (moment - begin + EXACT)


@given(
    rate=RATES,
    steps=st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 50), st.integers(0, 50))),
)
def test_a_clock_that_goes_back_gives_nothing_twice(
    rate: float, steps: list[tuple[float, int, int]]
) -> None:
    limit = limit_of(rate)
    largest = max([limit.burst, *(need for _, need, _ in steps)])
    spent_until, now, given_out = 0.0, 1000.0, 0
    moments = []
    for seconds, need, more in steps:
        now += seconds
        moments.append(now)
        after, grant = lease(spent_until, now, limit, need, need + more)
        assert after >= spent_until
        assert grant.tokens == 0 or grant.tokens >= need
        spent_until, given_out = after, given_out + grant.tokens
        assert given_out <= largest + rate * (max(moments) - min(moments) + EXACT)


@given(
    rate=st.sampled_from([0.5, 1.0, 3.0, 10.0, 33.3, 100.0]),
    busy=st.integers(1, 3),
    idle=st.integers(0, 2),
    gap=st.floats(0.004, 0.01),
)
def test_a_flood_gets_all_of_the_rate_and_asks_seldom(
    rate: float, busy: int, idle: int, gap: float
) -> None:
    town = Town(limit_of(rate), busy + idle)
    for process in range(busy + idle):  # those that idle later had some first
        for _ in range(3):
            town.request(process)
            town.now += gap
    begin, seconds = town.now, max(4.0, 10 / rate)
    while town.now < begin + seconds:
        town.request(town.chance.randrange(busy), latency=0.001)
        town.now += gap / busy
    admitted = sum(tokens for moment, tokens in town.passed if moment >= begin)
    kept = town.limit.burst + idle * town.limit.chunk
    assert admitted >= 0.96 * rate * seconds - idle * town.limit.chunk - 2
    assert admitted <= rate * (seconds + EXACT) + kept
    for asked in town.asked[:busy]:
        steady = [moment for moment in asked if moment > begin + 1]
        assert len(steady) <= 1 + (seconds - 1) / (0.75 * PERIOD_SECONDS)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("rate", [10.0, 100.0, 1000.0])
def test_who_stays_below_the_limit_is_never_refused(rate: float, processes: int) -> None:
    town = Town(limit_of(rate), processes)
    requests = int(0.9 * rate * 10)
    for _ in range(requests):
        town.request(town.chance.randrange(processes))
        town.now += 1 / (0.9 * rate)
    assert town.refused == 0
    for asked in town.asked:
        assert len(asked) <= 16 * 10  # of up to 900 a second


def test_a_full_bucket_takes_its_burst_at_once() -> None:
    for rate, burst in ((1.0, 10.0), (100.0, None), (50.0, 200.0)):
        town = Town(limit_of(rate, burst), 2)
        most = int(town.limit.burst)
        assert [town.request(0) for _ in range(most)] == [True] * most
        assert not town.request(0)


def test_two_processes_get_the_same_of_an_empty_bucket() -> None:
    town = Town(limit_of(100.0), 2)
    got = [0, 0]
    while town.now < 1030:
        for process in (0, 1):  # always in this order
            got[process] += town.request(process, latency=0.001)
        town.now += 0.002
    assert 0.8 < got[0] / got[1] < 1.25


def test_a_batch_larger_than_the_burst_needs_a_full_bucket_and_leaves_a_debt() -> None:
    town = Town(limit_of(100.0), 1)
    assert town.request(0, 1000)
    assert not town.request(0)
    assert town.purses[0].wait_seconds(town.now, 1) == pytest.approx(9.01, abs=0.01)
    town.now += 8.9
    assert not town.request(0)
    town.now += 0.2
    assert town.request(0)
    town.now += 0.9
    assert not town.request(0, 1000)
    town.now += 0.2
    assert town.request(0, 1000)


def test_a_flood_of_batches_that_do_not_fit_asks_as_seldom() -> None:
    town = Town(limit_of(100.0), 1)
    assert town.request(0, 100)
    for _ in range(200):
        town.request(0, 50)
        town.now += 0.001
    assert len(town.asked[0]) == 1  # it knows from the first answer when they might
    town.now += 0.4
    assert town.request(0, 50)


def test_tokens_that_were_not_needed_in_the_end_are_kept() -> None:
    limit = limit_of(100.0)
    purse, now = LeasedTokens(limit), 1000.0
    spent_until, grant = lease(now - 0.5, now, limit, 1, 10)
    ask = purse.ask(now, 1)
    assert purse.receive(ask, grant, now, Random(1))
    held = purse.remaining(now)
    purse.put_back(purse.ask(now, 500))
    assert purse.remaining(now) == held
    _, nothing = lease(spent_until, now, limit, 500, 500)
    assert not purse.receive(purse.ask(now, 500), nothing, now, Random(1))
    assert purse.spend(now, 1)


def test_a_lease_goes_bad_token_by_token() -> None:
    limit = limit_of(10.0, 10.0)
    purse, now = LeasedTokens(limit), 1000.0
    _, grant = lease(0.0, now, limit, 1, 5)  # the oldest five of a full bucket
    assert purse.receive(purse.ask(now, 1), grant, now, Random(1))
    assert [purse.spend(now + 0.25, 1) for _ in range(3)] == [True, True, False]


@given(
    rate=RATES,
    burst=st.none() | st.floats(1, 500),
    spare=st.booleans(),
    steps=st.lists(st.tuples(st.floats(0, 2), st.integers(0, 300), st.integers(0, 20)), min_size=1),
)
def test_what_is_taken_beside_submissions_stays_within_the_limit(
    rate: float, burst: float | None, spare: bool, steps: list[tuple[float, int, int]]
) -> None:
    """Seconds, jobs wanted by the scheduler, and submissions, again and again."""
    town = Town(limit_of(rate, burst), 1)
    kept = int(town.limit.burst / 2) if spare else 0
    for seconds, want, submissions in steps:
        town.now += seconds
        for _ in range(submissions):
            town.request(0)
        town.spent_until, grant = take(town.spent_until, town.now, town.limit, kept, want)
        assert 0 <= grant.tokens <= want
        assert not grant.tokens or grant.left >= kept - rate * EXACT, "some are left, and no debt"
        town.passed.append((town.now, grant.tokens))
    for begin in {moment for moment, _ in town.passed}:
        spent = sum(tokens for moment, tokens in town.passed if moment >= begin)
        assert spent <= town.limit.burst + rate * (town.now - begin + EXACT)


@given(rate=RATES, burst=st.none() | st.just(1.0) | st.floats(1, 500), spare=st.booleans())
def test_who_takes_every_tenth_of_a_second_gets_all_of_the_rate(
    rate: float, burst: float | None, spare: bool
) -> None:
    limit, now, spent_until, tokens = limit_of(rate, burst), 1000.0, 1000.0, 0
    kept, seconds = int(limit.burst / 2) if spare else 0, max(20.0, 20 / rate)
    assume(limit.burst - kept >= 1 + 0.1 * rate)
    while now < 1000.0 + seconds:
        now += 0.1
        spent_until, grant = take(spent_until, now, limit, kept, 10_000)
        tokens += grant.tokens
    assert tokens >= 0.95 * rate * seconds - kept - 1


@pytest.mark.parametrize(
    ("rate", "burst", "told"),
    [
        (100.0, None, (100, 1)),
        (100.0, 500.0, (100, 1)),
        (0.5, None, (1, 2)),
        (2.5, None, (5, 2)),
        (1 / 3, None, (1, 3)),
        (0.0001, None, (1, 10_000)),
    ],
)
def test_a_limit_is_told_in_whole_numbers(
    rate: float, burst: float | None, told: tuple[int, int]
) -> None:
    limit = limit_of(rate, burst)
    assert (limit.quota, limit.window_seconds) == told
    assert limit.burst >= 1
