"""What the measured figures say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.baselines.witness import Line

#: Seconds since a beginning, and how many jobs were done by then; both never go down.
Curve = list[tuple[float, int]]


def whole_rate(curve: Sequence[tuple[float, int]]) -> float:
    """Jobs a second from the beginning to the last one done."""
    jobs = curve[-1][1]
    seconds = next(at for at, done in curve if done == jobs)
    return jobs / seconds if seconds > 0 else 0.0


def middle_rate(curve: Sequence[tuple[float, int]], edge: float = 0.1) -> float:
    """Jobs a second between a tenth and nine tenths of them: neither start nor thin end count."""
    low, high = moment_of(curve, edge), moment_of(curve, 1 - edge)
    if high <= low:
        return whole_rate(curve)
    return (1 - 2 * edge) * curve[-1][1] / (high - low)


def moment_of(curve: Sequence[tuple[float, int]], share: float) -> float:
    """When this share was done, on a straight line between two looks."""
    wanted = share * curve[-1][1]
    before = curve[0]
    for at, done in curve:
        if done >= wanted:
            step = done - before[1]
            return before[0] + (at - before[0]) * ((wanted - before[1]) / step if step else 0.0)
        before = (at, done)
    return curve[-1][0]


@dataclass(frozen=True, slots=True)
class Survival:
    """What became of jobs whose worker was killed."""

    promised: int
    #: Ran to their end at least once.
    done: int
    #: Ran to their end more than once.
    repeated: int
    #: Had begun when the worker was killed, and had not ended.
    interrupted: int

    @property
    def lost(self) -> int:
        """Accepted, and never run to the end."""
        return self.promised - self.done


def survival(promised: Iterable[int], lines: Sequence[Line], killed_at: float) -> Survival:
    """Count the witness's lines against the promises."""
    numbers = set(promised)
    begun: set[int] = set()
    ended: dict[int, int] = {}
    ended_in_time: set[int] = set()
    for line in lines:
        if line.number not in numbers:
            continue
        if line.what == "start":
            if line.at <= killed_at:
                begun.add(line.number)
        else:
            ended[line.number] = ended.get(line.number, 0) + 1
            if line.at <= killed_at:
                ended_in_time.add(line.number)
    return Survival(
        promised=len(numbers),
        done=len(ended),
        repeated=sum(times > 1 for times in ended.values()),
        interrupted=len(begun - ended_in_time),
    )
