"""Job errors for failed calls to Claude.

A temporary failure (overload, server error, network) is a ``DependencyFailure`` and carries the
wait that was asked for; a rate limit is ``QuotaSpent``; an invalid request is ``Permanent``. The
messages quote the API, shortened and without secrets.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import anthropic

from tasks.errors import DependencyFailure, JobError, MalformedAnswer, Permanent, QuotaSpent
from tasks.scorers.deadline import DeadlinePassed
from tasks.scorers.headers import retry_after_seconds

#: The dependency's name, as job types declare it.
DEPENDENCY = "claude"

# 408 and 499: the request was cut short; 409 and 425: it came at a bad moment.
_PASSING_STATUSES = frozenset({408, 409, 425, 429, 499})
# The kind of error decides where a gateway has replaced the status.
_PASSING_KINDS = frozenset({"rate_limit_error", "overloaded_error", "api_error", "timeout_error"})
_QUOTED_CHARACTERS = 300


def failure_of(error: Exception, *, secrets: Collection[str] = ()) -> JobError:
    match error:
        case DeadlinePassed() | anthropic.APITimeoutError():
            return DependencyFailure(DEPENDENCY, "Claude did not answer in time")
        case anthropic.APIConnectionError():
            cause = error.__cause__
            reason = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
            message = f"Claude could not be reached: {_quoted(reason, secrets)}"
            return DependencyFailure(DEPENDENCY, message)
        case anthropic.APIStatusError():
            return _refusal(error, secrets)
        case anthropic.AnthropicError():
            return Permanent(f"Claude cannot be called: {_quoted(str(error), secrets)}")
        case _:
            kind = type(error).__name__
            return MalformedAnswer(f"Claude's answer cannot be read ({kind})")


def _refusal(error: anthropic.APIStatusError, secrets: Collection[str]) -> JobError:
    status = error.status_code
    words = error.api_message if isinstance(error.api_message, str) else "no reason given"
    message = f"Claude answered {status}: {_quoted(words, secrets)}"
    if error.request_id:
        message += f" (request {_quoted(error.request_id, secrets)})"
    if status in _PASSING_STATUSES or status >= 500 or error.type in _PASSING_KINDS:
        wait = retry_after_seconds(
            error.response.headers, rate_limited=status == 429, now=datetime.now(UTC)
        )
        refused = status == 429 or error.type == "rate_limit_error"
        kind = QuotaSpent if refused else DependencyFailure
        return kind(DEPENDENCY, message, retry_after=wait)
    return Permanent(message)


def _quoted(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    # Shortened after the replacement: half a secret would not be recognised.
    return " ".join(text.split())[:_QUOTED_CHARACTERS]
