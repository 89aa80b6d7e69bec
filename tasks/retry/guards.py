"""Limits on tenants and job types that fail: retry budget, quarantine, throttle, usage spike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.retry.circuit import Window, without

#: Retry budget: a tenant's runs that count are at most this old.
BUDGET_WINDOW_SECONDS = 600.0
#: Retries per first run.
RETRIES_PER_FIRST_RUN = 2
#: Retries that every tenant has, however little it runs.
BUDGET_FLOOR = 20
#: A tenant without budget has some again when its retries are below this part of what it may have.
BUDGET_BACK = 0.9

#: Quarantine: a type's runs that count are at most this old.
QUARANTINE_WINDOW_SECONDS = 3600.0
#: Fewer runs than this change nothing.
QUARANTINE_MIN_RUNS = 50
#: A type enters above this share of bad runs, and leaves below the other.
ENTER_SHARE = 0.5
LEAVE_SHARE = 0.25
#: Attempts of a job of a quarantined type.
QUARANTINE_TRIES = 2

#: Throttle: crashes that count are at most this old.
THROTTLE_WINDOW_SECONDS = 600.0
#: Crashes in the window that bring the throttle: workers lost to jobs that had lost two before,
#: and worker processes killed because a run broke a limit.
THROTTLE_CRASHES = 5
#: Jobs of a throttled tenant that may be in flight in the pool.
THROTTLED_IN_FLIGHT = 1

#: Spike: this many times the average.
SPIKE_TIMES = 10
#: Fewer hours than this are no average.
SPIKE_MIN_HOURS = 3
#: The average counts as at least this many jobs per hour: starting to use it is no spike.
SPIKE_BASELINE = 100


def budget_spent(first_runs: int, retries: int, was: bool) -> bool:
    """Whether a tenant's budget is spent, given that it ``was``.

    Its failures then become dead letters early, and can be replayed once the cause is gone. Crashes
    and failures of dependencies are not charged: they are not the tenant's fault.

    It comes back a tenth at a time, so that a tenant near the limit does not flap.
    """
    allowed = max(BUDGET_FLOOR, RETRIES_PER_FIRST_RUN * first_runs)
    return retries >= (BUDGET_BACK * allowed if was else allowed)


def quarantined(window: Window, was: bool) -> bool:
    """Whether a type with these runs in the last hour gets fewer attempts, given that it ``was``.

    The same for a tenant's jobs of a type, by their runs. The two shares differ so that a type near
    the limit does not flap. Too few runs prove nothing: a quarantine ends with the type's traffic.
    """
    if window.total < QUARANTINE_MIN_RUNS:
        return False
    return window.bad_share >= LEAVE_SHARE if was else window.bad_share > ENTER_SHARE


def quarantined_for_all(window: Window, tenants: Iterable[Window], was: bool) -> bool:
    """Whether a type is quarantined for everybody: it is without any one of its tenants, too.

    ``window`` counts everybody's runs, ``tenants`` those of each tenant with failures. A tenant
    that is alone in failing has a quarantine of its own, see :func:`quarantined`.
    """
    return quarantined(window, was) and all(
        quarantined(without(window, own), was) for own in tenants
    )


def throttled(crashes: int, was: bool, limit: int = THROTTLE_CRASHES) -> bool:
    """Whether a tenant with ``crashes`` in the window runs one job at a time in the pool.

    One job in flight harms one worker at a time, and still shows when the tenant is harmless
    again: a whole window without a crash lifts the throttle.
    """
    return crashes >= (1 if was else limit)


def spiking(hours: Sequence[int], this_hour: int) -> bool:
    """Whether ``this_hour`` is far above the average of earlier ``hours``; it only alerts."""
    if len(hours) < SPIKE_MIN_HOURS:
        return False
    return this_hour >= SPIKE_TIMES * max(SPIKE_BASELINE, sum(hours) / len(hours))
