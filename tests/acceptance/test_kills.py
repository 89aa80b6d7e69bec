"""kill -9 at random moments under load: every promise is kept, exactly once.

``FAIRLINE_KILL_ROUNDS`` kills of each part, 2 unless set; ``python -m loadtest.chaos`` does ten
and shows the recovery times.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from loadtest.chaos.killer import TARGETS, plan
from loadtest.chaos.rounds import run_rounds
from tests.acceptance.client import Client, new_role

ROUNDS = int(os.environ.get("FAIRLINE_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("FAIRLINE_KILL_SEED", random.SystemRandom().randrange(10**9)))


@pytest.mark.timeout(60 + 60 * ROUNDS)
def test_every_promise_survives_the_kill_of_every_part(client: Client, tmp_path: Path) -> None:
    print(f"repeat it with FAIRLINE_KILL_SEED={SEED}")
    recoveries, report = run_rounds(
        client.stack, plan(TARGETS, ROUNDS, SEED), tmp_path / "promises.jsonl", role=new_role()
    )
    for recovery in recoveries:
        print(recovery)
    assert report.ok, f"{report}\n{client.stack.logs()}"
    assert report.promised > len(recoveries) * 10, "the load was to go on between the kills"
    late = [recovery for recovery in recoveries if recovery.replaced > 5]
    assert not late, f"a process that dies is replaced within 5 s: {late}"
