"""One attack from the start of its stack to the report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtest.attack.judge import Attacked, Measured, judge
from loadtest.attack.picture import draw
from loadtest.attack.rounds import FAMILIES
from loadtest.attack.rounds.kinds import Round, Scale
from loadtest.attack.stage import Stage, staged
from loadtest.attack.victim import Habits, Timed, living, tail
from loadtest.figures import MACHINE, CoreMeter
from loadtest.fleet import Fleet
from loadtest.report import Report

#: Between two rounds: what one has opened is closed by then.
REST_SECONDS = 1.0
#: After the warm-up, before memory is read.
QUIET_SECONDS = 2.0
#: Written to ``clear_refs``: the peak begins anew, at what is resident now.
RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class AttackSize:
    #: Of the victim alone, and of each round.
    before_seconds: float
    scale: Scale
    #: Of each round in the warm-up.
    warm: Scale
    families: Sequence[str] = tuple(FAMILIES)

    @property
    def rounds(self) -> list[Round]:
        return [one for family in self.families for one in FAMILIES[family]]


FULL = AttackSize(12.0, Scale(5.0), Scale(0.5, 0.3, one_in=5))
QUICK = AttackSize(5.0, Scale(1.5, 0.5), Scale(0.3, 0.3, one_in=10))

#: Called with the name of each step and the number of those done.
Progress = Callable[[str, int], None]


def attack(fleet: Fleet, folder: Path, size: AttackSize, progress: Progress) -> Report:
    """Run all rounds on a fresh stack; draws into the folder."""
    progress("starting the stack", 0)
    with staged(fleet) as stage:
        with living(Habits(stage.port, stage.keys.victim, stage.marker)) as timed:
            measured = run_rounds(stage, size, progress)
        look_at_victim(stage, measured, timed)
        measured.log_errors = stage.unexpected_errors()
    draw(folder / "attack.png", measured)
    return judge(measured, "attack.png")


def run_rounds(stage: Stage, size: AttackSize, progress: Progress) -> Measured:
    """Warm up, leave the victim alone for a while, then one round after the other."""
    processes = stage.api_processes()
    answers, things = stage.answers(), stage.victim_rows()
    progress("warming up", 0)
    for one in size.rounds:
        stage.attacker.begin()
        one.run(stage, size.warm)
    time.sleep(QUIET_SECONDS)
    progress("the victim alone", 0)
    with measuring(stage, "(before)", processes) as before:
        time.sleep(size.before_seconds)
    measured = Measured(before)
    for number, one in enumerate(size.rounds, 1):
        progress(one.name, number)
        with measuring(stage, one.name, processes) as attacked:
            one.run(stage, size.scale)
        measured.rounds.append(attacked)
        time.sleep(REST_SECONDS)
    after = stage.answers()
    measured.different = [
        f"{path}: {after[path]} instead of {status}"
        for path, status in answers.items()
        if after[path] != status
    ]
    measured.changed = stage.victim_rows() != things
    measured.replaced = len({*processes} - {*stage.api_processes()})
    return measured


@contextmanager
def measuring(stage: Stage, name: str, processes: Sequence[psutil.Process]) -> Iterator[Attacked]:
    """A round: what it is answered, what it takes, and the API's peak of memory."""
    for process in processes:
        with suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text(RESET_PEAK)
    meter = CoreMeter({"run": [os.getpid()]})
    stage.attacker.begin()
    attacked = Attacked(name, time.monotonic(), 0.0, 0.0, stage.attacker.tally)
    yield attacked
    attacked.ended, attacked.cores = time.monotonic(), stage.attacker.cores
    used = meter.read()
    attacked.others = max(0.0, used[MACHINE] - used["run"])
    attacked.memory_mb = sum(peak_mb(process) for process in processes)


def peak_mb(process: psutil.Process) -> float:
    """The most that a process was resident since its peak was reset; 0 if it has ended."""
    with suppress(OSError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    return 0.0


def look_at_victim(stage: Stage, measured: Measured, timed: Sequence[Timed]) -> None:
    """What the victim noted: latencies by round, requests that failed, jobs that were lost."""
    for one in (measured.before, *measured.rounds):
        one.p50_ms, one.p99_ms = tail(timed, one.began, one.ended)
    accepted = [one.job_id for one in timed if one.job_id]
    measured.accepted = len(accepted)
    measured.unsettled = stage.unsettled(accepted, "succeeded")
    began = measured.before.began
    failed = [one for one in timed if one.status not in (200, 202)]
    measured.unserved = [
        *(f"a request after {one.at - began:.1f} s: {one.status}" for one in failed),
        *stage.denied,
    ]
