"""How large a swarm, for how long, and what it must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.lab.experiment import Size
from loadtest.shapes import Stretch

#: A client has three applications and asks for each once a second.
POLLS_A_SECOND = 3.0
SLOTS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """One size of the experiment."""

    clients: int
    ramp_seconds: float
    hold_seconds: float
    #: The stage at half of the peak; its first seconds, in which the clients come, do not count.
    half_seconds: float
    settle_seconds: float
    #: The peak is the best stretch of so many seconds.
    window_seconds: int
    #: CPU is looked at so often; a look costs a few hundredths of a second.
    look_seconds: float
    #: What a job takes; a worker of ten slots ends ten in that time. One worker scores as much
    #: here as four that take 1.5 s a job.
    score_seconds: float
    #: Whether the second stage begins without the line that the first one left behind.
    afresh: bool
    peak_bar: float
    p95_bar_ms: float

    @property
    def jobs_a_second(self) -> float:
        """What the worker can score."""
        return SLOTS / self.score_seconds

    def ramp(self) -> Sequence[Stretch]:
        """Up to all clients, and then all of them."""
        return (
            Stretch(self.ramp_seconds, 0, self.clients),
            Stretch(self.hold_seconds, self.clients, self.clients),
        )

    def half(self, peak: float) -> Sequence[Stretch]:
        """As many clients as ask for half of the peak when nobody makes them wait."""
        clients = min(self.clients, max(1, round(peak / 2 / POLLS_A_SECOND)))
        return (Stretch(self.half_seconds, clients, clients),)


PLANS = {
    Size.FULL: Plan(
        clients=8_000,
        ramp_seconds=60,
        hold_seconds=40,
        half_seconds=40,
        settle_seconds=5,
        window_seconds=10,
        look_seconds=5,
        score_seconds=0.375,
        afresh=True,
        peak_bar=3_000,
        p95_bar_ms=70,
    ),
    Size.QUICK: Plan(
        clients=1_500,
        ramp_seconds=10,
        hold_seconds=10,
        half_seconds=10,
        settle_seconds=3,
        window_seconds=5,
        look_seconds=2,
        score_seconds=0.375,
        afresh=True,
        peak_bar=2_400,
        p95_bar_ms=100,
    ),
    Size.MINI: Plan(
        clients=50,
        ramp_seconds=1,
        hold_seconds=4,
        half_seconds=2,
        settle_seconds=0.5,
        window_seconds=2,
        look_seconds=1,
        # Slow enough that a client asks more than once for what has not changed.
        score_seconds=0.4,
        afresh=False,
        peak_bar=0,
        p95_bar_ms=1_000,
    ),
}
