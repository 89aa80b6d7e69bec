"""Three minutes of faults of engines, machines and processes: every promise is kept.

``FAIRLINE_CHAOS_SECONDS`` sets another time; ``make chaos-cluster`` does the same and shows it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from app.stack.rabbitmq import find_server
from app.stack.screen import Screen
from loadtest.cluster.requirements import patroni
from loadtest.cluster_chaos.gaps import (
    POSTGRES_BAR,
    RABBITMQ_BAR,
    after_postgres,
    after_rabbitmq,
)
from loadtest.cluster_chaos.run import ClusterChaosOptions, run

SECONDS = float(os.environ.get("FAIRLINE_CHAOS_SECONDS", "180"))
SEED = int(os.environ.get("FAIRLINE_CHAOS_SEED", random.SystemRandom().randrange(10**9)))


@pytest.mark.timeout(SECONDS + 900)
def test_every_promise_survives_the_faults_of_a_cluster(tmp_path: Path) -> None:
    rabbitmq = find_server()
    assert rabbitmq is not None
    print(f"repeat it with make chaos-cluster SEED={SEED} MINUTES={SECONDS / 60:g}")
    options = ClusterChaosOptions(SEED, SECONDS, tmp_path, patroni(Screen()), rabbitmq.parent)
    found = run(options)
    print(found.findings)
    assert found.findings.ok, f"seed {SEED}: {found.findings}\n{tmp_path} holds the logs"
    stopped = [outage for outage in found.outages if outage.stopped]
    assert not stopped, f"seed {SEED}: nothing was accepted while a machine was lost: {stopped}"
    assert not found.failed, f"seed {SEED}: {found.failed}"
    # Twice the bars of the command: other tests may have left work on this machine.
    assert after_postgres(found.outages) < 2 * POSTGRES_BAR, found.outages
    assert after_rabbitmq(found.outages) < 2 * RABBITMQ_BAR, found.outages
    assert len(found.faults) > SECONDS / 20, "there was to be a fault every few seconds"
    assert found.findings.figures["promised"] > SECONDS * 3, "the load was to go on meanwhile"
