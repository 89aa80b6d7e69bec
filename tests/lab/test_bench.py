"""``make bench`` in miniature: it measures both sides and compares them."""

from __future__ import annotations

import pytest

from loadtest.accept import Servers, drain_fairline, drain_plain
from loadtest.bench import BAR_CONNECTIONS, compare
from loadtest.fleet import Fairline, Fleet
from loadtest.plain import PlainCelery

pytestmark = pytest.mark.long


def test_bench_measures_both_sides_and_compares_them(lab_fleet: Fleet) -> None:
    fairline = Fairline(lab_fleet, served_pools="medium", score_seconds="0.2")
    plain = PlainCelery(lab_fleet)
    servers = Servers(fairline, plain, seconds=0.5)
    with servers.open():
        samples = servers.take_turns(BAR_CONNECTIONS, poll=True)
    samples += [drain_fairline(fairline, 200), drain_plain(plain, 100)]

    assert [(s.name, s.rate, s.unexpected) for s in samples if s.rate <= 0 or s.unexpected] == []
    report = compare(samples)
    assert len(report.bars) == 6
    assert not lab_fleet.children
