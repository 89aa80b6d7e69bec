"""Who is silent: never because of somebody else's pause, and always soon after its death."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from app.policy.silence import PAUSE_COUNTS_SECONDS, Silence

LIMIT = 6.0
BEAT = 2.0
looks = st.lists(st.floats(0.01, 1.2), min_size=1, max_size=60)


@given(looks, st.floats(0.0, 30.0))
def test_a_killed_worker_is_silent_within_the_limit_and_two_looks(
    gaps: list[float], died: float
) -> None:
    silence, now = Silence(LIMIT), 0.0
    silent_at = None
    for gap in [*gaps, *[1.2] * 40]:
        now += gap
        found = silence.look(now, {"dead": int(min(now, died) / BEAT), "alive": now})
        assert "alive" not in found
        if "dead" in found and silent_at is None:
            silent_at = now
    assert silent_at is not None
    last_sign = int(died / BEAT) * BEAT
    assert last_sign + LIMIT <= silent_at <= max(last_sign, gaps[0]) + LIMIT + 2.4


@given(st.lists(st.tuples(looks, st.floats(0.0, 3600.0)), min_size=1, max_size=5))
@example([([0.25, 0.625], 2.0), ([0.0625], 2.0), ([0.03125, 0.625, 0.25], 2.0), ([0.125], 0.0)])
def test_no_pause_makes_a_living_worker_silent(stretches: list[tuple[list[float], float]]) -> None:
    """All stand still together: the worker, the database, or only the listener."""
    silence, now, lived = Silence(LIMIT), 0.0, 0.0
    for gaps, pause in stretches:
        for gap in gaps:
            now, lived = now + gap, lived + gap
            assert not silence.look(now, {"w": int(lived / BEAT)})
        now += pause


def test_one_look_counts_little_however_long_ago_the_one_before_was() -> None:
    silence = Silence(LIMIT)
    silence.look(0.0, {"w": 1})
    for number in range(1, int(LIMIT / PAUSE_COUNTS_SECONDS)):
        assert not silence.look(number * 1000.0, {"w": 1})
    assert silence.look(100_000.0, {"w": 1}) == {"w"}
    assert silence.look(100_001.0, {"w": 2}) == set(), "it speaks again"
    assert silence.look(100_002.0, {}) == set()
    assert silence.look(100_003.0, {"w": 2}) == set(), "who was gone is new"


def test_who_could_not_give_a_sign_is_counted_afresh() -> None:
    silence = Silence(LIMIT)
    for second in range(int(LIMIT)):
        assert not silence.look(second, {"w": 1})
    assert silence.look(LIMIT, {"w": 1}) == {"w"}
    silence.excuse({"w", "somebody else"})
    for second in range(1, int(LIMIT) + 1):
        assert not silence.look(LIMIT + second, {"w": 1})
    assert silence.look(2 * LIMIT + 1, {"w": 1}) == {"w"}
