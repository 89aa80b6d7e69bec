"""The load tests in miniature: they run against today's product and see what they should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.postgres import EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.accept import Servers, drain_fairline, drain_plain
from loadtest.bench import BAR_CONNECTIONS, compare
from loadtest.fleet import Fairline, Fleet
from loadtest.plain import PlainCelery


@pytest.fixture
def small_fleet(
    tmp_path: Path, postgres: Running[EmbeddedPostgres], rabbitmq: Running[EmbeddedRabbitMQ]
) -> Iterator[Fleet]:
    started = Fleet(tmp_path, postgres, rabbitmq)
    yield started
    started.stop()
    for name in ("fairline", "plain"):
        postgres.service.drop_database(name)


@pytest.mark.slow
def test_bench_measures_both_sides_and_compares_them(small_fleet: Fleet) -> None:
    fairline = Fairline(small_fleet, served_pools="medium", score_seconds="0.2")
    plain = PlainCelery(small_fleet)
    servers = Servers(fairline, plain, seconds=0.5)
    with servers.open():
        samples = servers.take_turns(BAR_CONNECTIONS, poll=True)
    samples += [drain_fairline(fairline, 200), drain_plain(plain, 100)]

    assert [(s.name, s.rate, s.unexpected) for s in samples if s.rate <= 0 or s.unexpected] == []
    report = compare(samples)
    assert len(report.bars) == 6
    assert not small_fleet.children
