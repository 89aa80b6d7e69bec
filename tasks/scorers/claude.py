"""A scorer that calls Claude through the ``anthropic`` SDK.

One call is one HTTP request: the SDK's own retries are off, because the platform retries by
failure class and honours ``retry-after``. The whole call ends within ``timeout_seconds`` (see
``deadline`` for the one exception).

Not guaranteed: the same score twice, or that the rubric is cached (models ignore ``cache_control``
on prompts below their minimum). Spans never have content: applications are personal data.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
from anthropic import DefaultHttpxClient
from anthropic.types import Message

from tasks.errors import DependencyOutage, JobError, MalformedAnswer
from tasks.quota import QuotaReading, Report, ignore_reading
from tasks.scorers.answer import ANSWER_SCHEMA, parse_answer
from tasks.scorers.deadline import DeadlinePassed, deadline, hold
from tasks.scorers.evidence import verified
from tasks.scorers.failures import DEPENDENCY, failure_of
from tasks.scorers.headers import quota_reading
from tasks.scorers.protocol import ApplicationText, Score, TokenUsage
from tasks.scorers.rubric import RUBRIC_HASH, RUBRIC_TEXT, marked, weighted_score
from tasks.scorers.untrusted import as_data, plain
from tasks.worker.tracing import model_call

if TYPE_CHECKING:
    from anthropic.types import MessageParam, OutputConfigParam, TextBlockParam

#: Room for the answer (about 600 tokens) and for a model that thinks first by itself.
_MAX_TOKENS = 4096
#: What is kept of a model's name.
_MODEL_CHARACTERS = 40
#: More than the slots of any worker process, so that no call waits for another's connection.
_MAX_CONNECTIONS = 256
#: Shorter than the idle limits of servers and proxies, so that a reused connection is alive.
_KEEPALIVE_SECONDS = 15.0
_CONNECT_SECONDS = 5.0

_SYSTEM: list[TextBlockParam] = [
    {"type": "text", "text": RUBRIC_TEXT, "cache_control": {"type": "ephemeral"}}
]
_OUTPUT: OutputConfigParam = {"format": {"type": "json_schema", "schema": ANSWER_SCHEMA}}


class ClaudeScorer:
    """Scores by asking a Claude model to mark the rubric's criteria."""

    def __init__(
        self, *, model: str, timeout_seconds: float, api_key: str = "", base_url: str = ""
    ) -> None:
        self._model = model
        self._timeout_seconds = timeout_seconds
        self._api_key = api_key
        self._base_url = base_url
        self._made: anthropic.Anthropic | None = None
        self._making = threading.Lock()

    def prepare(self) -> None:
        """Create the client; a missing or invalid key is found here, not by every application."""
        self._client()

    def score(self, application: ApplicationText, report: Report = ignore_reading) -> Score:
        with model_call("anthropic", self._model) as call:
            message = self._ask(_turn(application), report)
            call.model = _model_of(message)
            fresh, call.tokens_out, *cached = map(_whole, _counts(message))
            call.tokens_in = fresh + sum(cached)
        answer = parse_answer(_text(message))
        criteria = marked(answer.marks)
        evidence, dropped = verified(answer.quotes, application.payload)
        return Score(
            score=weighted_score(criteria),
            rationale=answer.rationale,
            model=_model_of(message) or self._model[:_MODEL_CHARACTERS],
            rubric=RUBRIC_HASH,
            input=application.fingerprint(),
            criteria=criteria,
            evidence=evidence,
            dropped_quotes=dropped,
            usage=_usage(message),
        )

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._making:
            made, self._made = self._made, None
        if made is not None:
            made.close()

    def _ask(self, turn: MessageParam, report: Report) -> Message:
        client = self._client()
        try:
            with deadline(self._timeout_seconds):
                answer = client.messages.with_raw_response.create(
                    model=self._model,
                    max_tokens=_MAX_TOKENS,
                    system=_SYSTEM,
                    messages=[turn],
                    output_config=_OUTPUT,
                )
                _report_quota(answer.headers, report)
                message: object = answer.parse()
        except anthropic.APIStatusError as error:
            _report_quota(error.response.headers, report)
            raise _failure(error, client) from None
        except (DeadlinePassed, anthropic.AnthropicError, ValueError, RecursionError) as error:
            raise _failure(error, client) from None
        # The SDK returns a bare string for a 200 that is not JSON.
        if not isinstance(message, Message):
            raise MalformedAnswer("Claude's answer is not a message")
        report(_used(message))
        return message

    def _client(self) -> anthropic.Anthropic:
        if (made := self._made) is not None:
            return made
        with self._making:
            if self._made is None:
                self._made = self._make_client()
            return self._made

    def _make_client(self) -> anthropic.Anthropic:
        wait = min(_CONNECT_SECONDS, self._timeout_seconds)
        timeout = httpx2.Timeout(self._timeout_seconds, connect=wait, pool=wait)
        limits = httpx2.Limits(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        )
        # The API never redirects, and an application must not be sent to another host.
        http_client = DefaultHttpxClient(timeout=timeout, limits=limits, follow_redirects=False)
        hold(http_client)
        try:
            client = anthropic.Anthropic(
                api_key=self._api_key.strip() or None,
                base_url=self._base_url or None,
                timeout=timeout,
                max_retries=0,
                http_client=http_client,
                open_telemetry={"traces": {"content_mode": "metadata_only"}},
            )
        except anthropic.AnthropicError as error:
            raise failure_of(error) from None
        _check_credentials(client)
        # The first access imports the resource: better under the lock than in fifty slots.
        client.messages  # noqa: B018
        return client


def _check_credentials(client: anthropic.Anthropic) -> None:
    """Fail here instead of inside a request, where the error would contain the key."""
    secret = client.api_key or client.auth_token
    if secret is None and client.credentials is None:
        message = "no API key for Claude: set FAIRLINE_CLAUDE_API_KEY or ANTHROPIC_API_KEY"
        raise DependencyOutage(DEPENDENCY, "there is no API key", message)
    if secret is not None and not (secret.isascii() and secret.isprintable() and " " not in secret):
        message = "the API key for Claude has characters that no HTTP header can carry"
        raise DependencyOutage(DEPENDENCY, "the API key is invalid", message)


def _failure(error: Exception, client: anthropic.Anthropic) -> JobError:
    """Not to be chained: an SDK error holds the request, and the request holds the key."""
    secrets = [secret for secret in (client.api_key, client.auth_token) if secret]
    return failure_of(error, secrets=secrets)


def _report_quota(headers: Mapping[str, str], report: Report) -> None:
    """Before the answer is read: it counts towards the quota whatever it contains."""
    if (reading := quota_reading(headers, datetime.now(UTC))) is not None:
        report(reading)


def _turn(application: ApplicationText) -> MessageParam:
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": as_data(application)},
            {"type": "text", "text": "Mark the application above by the rubric."},
        ],
    }


def _text(message: Message) -> str:
    """The text of a complete answer; the SDK does not validate what it parses, so this does."""
    match message.stop_reason:
        case "end_turn":
            pass
        case "max_tokens" | "model_context_window_exceeded":
            raise MalformedAnswer(f"the answer is cut off ({message.stop_reason})")
        case "refusal":
            raise MalformedAnswer("Claude refused to score this application")
        case other:
            raise MalformedAnswer(f"the answer stopped for an unexpected reason: {other!r:.40}")
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        raise MalformedAnswer("the answer has no content")
    # By type and not by position: a model that thinks puts that first.
    blocks = [block for block in content if getattr(block, "type", None) == "text"]
    texts = [getattr(block, "text", None) for block in blocks]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise MalformedAnswer("the answer has no text")
    return "".join(str(text) for text in texts)


def _model_of(message: Message) -> str:
    return plain(str(getattr(message, "model", "")))[:_MODEL_CHARACTERS]


def _whole(count: Any) -> int:
    """A count that the answer has, or 0."""
    return count if type(count) is int else 0


def _used(message: Message) -> QuotaReading:
    """Tokens that count towards the quota: all but those read from the prompt cache."""
    fresh, out, written, _ = map(_whole, _counts(message))
    return QuotaReading(used_in=fresh + written, used_out=out)


def _usage(message: Message) -> TokenUsage:
    # ``TokenUsage`` rejects anything that is not a count, a missing field included.
    fresh, out, *cached = _counts(message)
    TokenUsage(fresh, out)
    return TokenUsage(fresh + sum(count or 0 for count in cached), out)


def _counts(message: Message) -> list[Any]:
    usage = getattr(message, "usage", None)
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return [getattr(usage, name, None) for name in ("input_tokens", "output_tokens", *cached)]
