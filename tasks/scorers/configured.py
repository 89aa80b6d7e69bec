"""The scorer that the settings choose.

Choosing Claude imports its SDK, which costs a worker some 40 MB and over a second. Call
``current_scorer`` once while a worker starts, so that no job pays for it.
"""

from __future__ import annotations

import threading
from functools import cache

from tasks.config import TaskSettings, task_settings
from tasks.scorers.protocol import Scorer
from tasks.scorers.simulated import SimulatedScorer

_building = threading.Lock()


def build_scorer(settings: TaskSettings) -> Scorer:
    """A new scorer of the configured kind."""
    if settings.scorer == "claude":
        from tasks.scorers.claude import ClaudeScorer

        return ClaudeScorer(
            model=settings.claude_model,
            timeout_seconds=settings.claude_timeout_seconds,
            api_key=settings.claude_api_key.get_secret_value(),
            base_url=settings.claude_base_url,
        )
    return SimulatedScorer(seconds=settings.score_seconds)


def current_scorer() -> Scorer:
    """The scorer of this process, shared by all its slots."""
    # ``cache`` alone would let slots that start together build one each.
    with _building:
        return _scorer_of_this_process()


@cache
def _scorer_of_this_process() -> Scorer:
    return build_scorer(task_settings())
