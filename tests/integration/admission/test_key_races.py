"""Fifty hands on one idempotency key: one job, and everybody is told of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Admitted, IdempotencyKey, KeyReused, Submission, SubmissionGroup
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.race import ROUNDS, Race, assert_contested


@pytest.fixture
def race(api_database: DatabaseFixture) -> Iterator[Race]:
    opened = Race(emptied(api_database))
    yield opened
    opened.close()
    assert not opened.database.miscounted()


def test_fifty_requests_under_one_key_are_one_job(race: Race) -> None:
    """As five processes write them: groups of ten, all under the same key."""
    winners: Counter[str] = Counter()
    for number in range(ROUNDS):
        key = f"key {number}"
        groups = [[keyed(key, b"body") for _ in range(10)] for _ in range(5)]
        for group in groups[::2]:
            group[0] = keyed(key, b"another body")
        answers = race.run(*[partial(admit_group, race.engine, g, True) for g in groups])
        pairs = [
            (entry, answer)
            for group, given in zip(groups, answers, strict=True)
            for entry, answer in zip(group, given, strict=True)
        ]
        winner = agree(race, key, pairs)
        winners["body" if winner == b"body" else "another"] += 1
    assert len(race.rows()) == ROUNDS
    assert_contested(winners, "body", "another")


def test_fifty_connections_under_one_key_make_one_job(race: Race) -> None:
    url = race.engine.url.render_as_string(hide_password=False)
    wide = open_engine(DatabaseSettings(database_url=url, db_pool_size=50))
    start = threading.Barrier(50)

    def admit(entry: SubmissionGroup) -> Any:
        start.wait()
        return admit_group(wide, [entry], True)[0]

    with ThreadPoolExecutor(50) as threads:
        for number in range(5):
            entries = [keyed(f"key {number}", b"body") for _ in range(50)]
            answers = list(threads.map(admit, entries))
            agree(race, f"key {number}", list(zip(entries, answers, strict=True)))
    wide.dispose()
    assert len(race.rows()) == 5


def keyed(key: str, digest: bytes) -> SubmissionGroup:
    return SubmissionGroup(
        (Submission(new_id(), 1, "sleep", "medium", "{}"),), IdempotencyKey(key, digest)
    )


def agree(race: Race, key: str, pairs: list[tuple[SubmissionGroup, Any]]) -> bytes:
    """Everybody was told of the one job, or that the key is taken; the request that won."""
    (found,) = race.database.query(
        "SELECT digest, job_ids::text[] AS ids FROM idempotency_keys WHERE key = %s", key
    )
    won = bytes(found.digest)
    assert sum(isinstance(answer, Admitted) and not answer.repeated for _, answer in pairs) == 1
    for entry, answer in pairs:
        assert entry.key is not None
        if entry.key.digest == won:
            assert isinstance(answer, Admitted) and list(answer.ids) == found.ids
        else:
            assert isinstance(answer, KeyReused)
    return won
