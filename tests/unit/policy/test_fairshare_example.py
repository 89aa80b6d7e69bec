"""The example in docs/fair-share.md, run through the queue."""

from __future__ import annotations

import pytest

from app.policy.fairshare import (
    Entitlement,
    FairQueue,
    TenantClaim,
    Tier,
    default_seconds,
    entitlement_of,
)
from tests import ROOT

TEXT = (ROOT / "docs/fair-share.md").read_text()
NAMES = ("acme", "blue", "cyan", "dora")
WEIGHTS = {"acme": 10.0, "blue": 10.0, "cyan": 20.0, "dora": 10.0}
SECONDS = {"acme": 60.0, "blue": 6.0, "cyan": 60.0, "dora": 60.0}


def rows(heading: str) -> list[list[str]]:
    table = TEXT[TEXT.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def know(queue: FairQueue, name: str) -> None:
    queue.set_tenant(NAMES.index(name) + 1, TenantClaim(Entitlement(WEIGHTS[name])))
    queue.add_lane(NAMES.index(name) + 1, "")


def pick(queue: FairQueue) -> str:
    (grant,) = queue.allocate(1, slots=20)
    name = NAMES[grant.tenant_id - 1]
    queue.dispatched(grant.tenant_id, [SECONDS[name]])
    return name


def test_the_example_is_what_the_line_does() -> None:
    queue = FairQueue(60.0)
    for name in NAMES[:3]:
        know(queue, name)
    picks = []
    table = rows("| pick | acme")
    for _, *passes, following in table[:-1]:
        shown = [queue.account(number).pass_ for number in (1, 2, 3)]
        assert shown == pytest.approx([float(cell) for cell in passes])
        picks.append(pick(queue))
        assert picks[-1] == following
    assert [float(cell) for cell in table[-1][1:4]] == pytest.approx(
        [queue.account(number).pass_ for number in (1, 2, 3)]
    )
    assert [picks.count(name) for name in NAMES[:3]] == [1, 10, 2]
    for number, seconds in ((1, 60.0), (2, 60.0), (3, 120.0)):
        queue.reconcile(number, used=seconds, pending=0.0, in_flight=0)
    assert pick(queue) == table[-1][4]
    know(queue, "dora")
    assert queue.account(4).served == pytest.approx(6.0)
    assert [pick(queue) for _ in range(3)] == ["blue", "cyan", "dora"]


def test_a_job_that_took_longer_costs_what_it_took() -> None:
    queue = FairQueue(60.0)
    know(queue, "acme")
    pick(queue)
    assert queue.account(1).pass_ == 6.0
    queue.reconcile(1, used=90.0, pending=0.0, in_flight=0)
    assert queue.account(1).pass_ == 9.0


def test_the_table_of_tiers_is_true() -> None:
    for tier, weight, _ in rows("| tier |"):
        assert entitlement_of(Tier(tier)).weight == float(weight.split(",")[0])
    assert entitlement_of(Tier.FREE).ceiling == 0.05
    assert entitlement_of(Tier.PRO).floor == 0.01
    first = [default_seconds(pool) for pool in ("short", "medium", "long", "other")]
    assert first == [10.0, 60.0, 600.0, 60.0]
