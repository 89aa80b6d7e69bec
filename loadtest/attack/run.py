"""One attack from the start of its stack to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.attack.attacker import Tally
from loadtest.attack.judge import Attacked, Measured, judge
from loadtest.attack.memory import MemoryCurve, peak_mb, reset_peaks, resident_mb
from loadtest.attack.picture import draw
from loadtest.attack.plan import FAMILIES, Round, Scale, rounds_of
from loadtest.attack.stage import SETTLE_SECONDS, Stage, staged
from loadtest.attack.victim import Habits, Victim, living, tail, unserved
from loadtest.fleet import Fleet
from loadtest.report import Report

#: Between two rounds: what one has opened is closed by then.
REST_SECONDS = 1.0
#: After the warm-up, before memory is read.
QUIET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class AttackSize:
    #: Of the victim alone, and of each round.
    before_seconds: float
    scale: Scale
    #: Of each round in the warm-up.
    warm: Scale
    families: Sequence[str] = FAMILIES

    @property
    def rounds(self) -> list[Round]:
        return [one for family in self.families for one in rounds_of(family)]


FULL = AttackSize(12.0, Scale(4.5), Scale(0.5, 0.3, one_in=5))
QUICK = AttackSize(5.0, Scale(1.5, 0.5), Scale(0.3, 0.3, one_in=10))

#: Called with the name of each step and the number of those done.
Progress = Callable[[str, int], None]


def attack(
    fleet: Fleet, folder: Path, size: AttackSize, progress: Progress = lambda *_: None
) -> Report:
    """Run all rounds on a fresh stack; draws into the folder."""
    progress("starting the stack", 0)
    with staged(fleet) as stage:
        habits = Habits(stage.port, stage.keys.victim, stage.marker)
        with living(habits) as victim:
            measured, curve, began = run_rounds(stage, victim, size, progress)
        measured.accepted = len(victim.accepted)
        measured.unserved = [
            f"{one.status} after {one.at - began:.1f} s" for one in unserved(victim.timed, began)
        ]
        measured.unsettled = stage.unsettled(victim.accepted, SETTLE_SECONDS)
        conclude(stage, measured)
    draw(folder / "attack.png", measured, curve.points, victim.timed, began)
    return judge(measured, "attack.png")


def run_rounds(
    stage: Stage, victim: Victim, size: AttackSize, progress: Progress
) -> tuple[Measured, MemoryCurve, float]:
    """Warm up, measure the victim alone, then one round after the other."""
    processes = stage.api_processes()
    answers, things = stage.answers(), stage.victim_rows()
    progress("warming up", 0)
    for one in size.rounds:
        one.run(stage, size.warm)
    stage.attacker.tally = Tally()
    time.sleep(QUIET_SECONDS)
    idle = resident_mb(processes)
    began = time.monotonic()
    with MemoryCurve(processes) as curve:
        progress("the victim alone", 0)
        time.sleep(size.before_seconds)
        p50, p99, _ = tail(victim.timed, began, time.monotonic())
        measured = Measured(idle, p50, p99, [])
        for number, one in enumerate(size.rounds, 1):
            progress(one.name, number)
            with tallied(stage) as tally:
                reset_peaks(processes)
                at = time.monotonic()
                one.run(stage, size.scale)
                ended = time.monotonic()
            peak = max(peak_mb(processes), resident_mb(processes))
            measured.rounds.append(attacked(one.name, at, ended, tally, peak, victim))
            time.sleep(REST_SECONDS)
    after = stage.answers()
    measured.different = [
        f"{path}: {after[path]} instead of {status}"
        for path, status in answers.items()
        if after[path] != status
    ]
    measured.changed = stage.victim_rows() != things
    measured.replaced = len({*processes} - {*stage.api_processes()})
    measured.end_mb = resident_mb(processes)
    return measured, curve, began


def conclude(stage: Stage, measured: Measured) -> None:
    measured.denied = stage.denied
    measured.log_errors = stage.unexpected_errors()


@contextmanager
def tallied(stage: Stage) -> Iterator[Tally]:
    """A tally for one round."""
    stage.attacker.tally = Tally()
    yield stage.attacker.tally


def attacked(
    name: str, began: float, ended: float, tally: Tally, peak: float, victim: Victim
) -> Attacked:
    p50, p99, requests = tail(victim.timed, began, ended)
    return Attacked(
        name,
        began,
        ended,
        tally.connections,
        dict(tally.statuses),
        tally.closed,
        tally.server_errors,
        tally.served,
        tally.leaks,
        peak,
        p50,
        p99,
        requests,
    )
