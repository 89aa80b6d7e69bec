"""Retry policy, pure: what an outcome means for the job. Standard library only."""

from tasks.retry.backoff import backoff_seconds, jittered
from tasks.retry.decision import History, RetryDecision, Verdict, decide_retry

__all__ = ["History", "RetryDecision", "Verdict", "backoff_seconds", "decide_retry", "jittered"]
