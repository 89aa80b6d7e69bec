"""``make attack`` in miniature, on a real stack: the hostile client learns and breaks nothing.

Memory and latencies of seconds on a busy machine say nothing, so of all bars only those are held
that allow nothing at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.attack.rounds.kinds import Scale
from loadtest.attack.run import AttackSize, attack
from loadtest.fleet import Fleet

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

MINI = AttackSize(2.0, Scale(0.5, 0.1), Scale(0.1, 0.02, one_in=20), ("slow", "keys", "framing"))


def test_an_attack_is_refused_and_leaves_the_stack_as_it_was(
    lab_fleet: Fleet, tmp_path: Path
) -> None:
    steps: list[str] = []
    report = attack(lab_fleet, tmp_path, MINI, lambda name, _: steps.append(name))

    assert lab_fleet.children == {}, "whatever it started was ended"
    none_allowed = [bar for bar in report.bars if bar.required == 0]
    assert len(none_allowed) == 9
    assert [bar for bar in none_allowed if not bar.passed] == [], report.findings
    assert report.data["accepted"] > 10
    assert all(
        sum(one["tally"]["statuses"].values()) + one["tally"]["closed"] > 0
        for one in report.data["rounds"]
    )
    assert len(steps) == 3 + len(MINI.rounds)
    assert (tmp_path / "attack.png").exists()
    assert "Rounds" in report.write(tmp_path).read_text()
