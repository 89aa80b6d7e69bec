"""Job errors for failed calls to Claude.

A temporary failure (overload, server error, network) is a ``DependencyFailure`` and carries the
wait that was asked for; a rate limit is ``QuotaSpent``. A refusal of the key, the account, the
model or the address meets every application alike: ``DependencyOutage``. Only what is wrong with
the request itself is ``Permanent``. The messages quote the API, shortened and without secrets.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import anthropic

from tasks.errors import (
    DependencyFailure,
    DependencyOutage,
    JobError,
    MalformedAnswer,
    Permanent,
    QuotaSpent,
)
from tasks.scorers.deadline import DeadlinePassed
from tasks.scorers.headers import retry_after_seconds

#: The dependency's name, as job types declare it.
DEPENDENCY = "claude"

# 408 and 499: the request was cut short; 409 and 425: it came at a bad moment.
_PASSING_STATUSES = frozenset({408, 409, 425, 429, 499})
# The kind of error decides where a gateway has replaced the status.
_PASSING_KINDS = frozenset({"rate_limit_error", "overloaded_error", "api_error", "timeout_error"})
# The application that was sent is at fault.
_PAYLOAD_STATUSES = frozenset({400, 413, 414, 422, 431})
# What everybody's calls are refused for, in words that tenants read.
_ACCOUNT = "the account has no credit or is disabled"
_OUTAGES = {
    401: "the API key was refused",
    402: _ACCOUNT,
    403: "the API key lacks a permission",
    404: "the model or the address was not found",
}
_OUTAGE_KINDS = {
    "authentication_error": _OUTAGES[401],
    "billing_error": _ACCOUNT,
    "permission_error": _OUTAGES[403],
    "not_found_error": _OUTAGES[404],
}
# An account that is out of credit or disabled gets a 400, without a code of its own. Only how the
# sentence begins counts: what follows could quote an application.
_ACCOUNT_WORDS = ("your credit balance is too low", "this organization has been disabled")
_ACCOUNT_CODES = ("organization_",)
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
        case anthropic.APIResponseValidationError():
            return MalformedAnswer("Claude's answer does not follow its schema")
        case anthropic.AnthropicError():
            message = f"Claude cannot be called: {_quoted(str(error), secrets)}"
            return DependencyOutage(DEPENDENCY, "its client cannot be set up", message)
        case _:
            kind = type(error).__name__
            return MalformedAnswer(f"Claude's answer cannot be read ({kind})")


def _refusal(error: anthropic.APIStatusError, secrets: Collection[str]) -> JobError:
    status = error.status_code
    words = error.api_message if isinstance(error.api_message, str) else "no reason given"
    message = f"Claude answered {status}: {_quoted(words, secrets)}"
    if error.request_id:
        message += f" (request {_quoted(error.request_id, secrets)})"
    kind = error.type if isinstance(error.type, str) else None
    if status in _PASSING_STATUSES or status >= 500 or kind in _PASSING_KINDS:
        wait = retry_after_seconds(
            error.response.headers, rate_limited=status == 429, now=datetime.now(UTC)
        )
        refused = status == 429 or kind == "rate_limit_error"
        failure = QuotaSpent if refused else DependencyFailure
        return failure(DEPENDENCY, message, retry_after=wait)
    if (reason := _outage(error, kind, words)) is not None:
        return DependencyOutage(DEPENDENCY, f"{reason} ({status})", message)
    # A 403 that is not in the API's format comes from a filter on the way, which may have judged
    # the text of this application alone.
    return DependencyFailure(DEPENDENCY, message) if status == 403 else Permanent(message)


def _outage(error: anthropic.APIStatusError, kind: str | None, words: str) -> str | None:
    """Why every call is refused; None if it is this one only."""
    status, code = error.status_code, error.error_code or ""
    if kind in _OUTAGE_KINDS:
        return _OUTAGE_KINDS[kind]
    if status in _PAYLOAD_STATUSES:
        account = words.lower().startswith(_ACCOUNT_WORDS) or code.startswith(_ACCOUNT_CODES)
        return _ACCOUNT if account else None
    if status == 403 and kind is None:
        return None
    return _OUTAGES.get(status, "calls are refused")


def _quoted(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    # Shortened after the replacement: half a secret would not be recognised.
    return " ".join(text.split())[:_QUOTED_CHARACTERS]
