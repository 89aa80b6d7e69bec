"""Every way the fake Claude behaves, by name: one right and many wrong.

Each is a function of the connection and the request. Those that wait end when the server stops.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from io import BufferedIOBase
from typing import Any, Protocol

MODEL_THAT_ANSWERS = "claude-haiku-5-5"
RETRY_AFTER_SECONDS = 7
#: No misbehaviour outlasts this, so that a forgotten server frees its threads.
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Request:
    """A request as it arrived."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def user_text(self) -> str:
        """All text of the user's turns."""
        blocks = [b for m in self.body["messages"] for b in m["content"]]
        return "\n".join(block["text"] for block in blocks)


class Connection(Protocol):
    """What a behaviour can do to a client."""

    wfile: BufferedIOBase
    close_connection: bool
    #: Set when the server stops.
    stopping: threading.Event
    #: How long a right answer takes.
    answer_seconds: float
    #: Rate limit headers, where there is a quota.
    limits: Callable[[], dict[str, str]] | None

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None: ...
    def start(self, status: int, headers: dict[str, str]) -> None: ...
    def error(
        self, status: int, kind: str, message: str, headers: dict[str, str] | None = None
    ) -> None: ...


def answer_to(request: Request) -> Any:
    """An answer that follows the request's schema."""
    schema = request.body["output_config"]["format"]["schema"]
    return _value(schema, request.user_text)


def _value(schema: dict[str, Any], seed: str) -> Any:
    if schema["type"] == "object":
        return {k: _value(sub, f"{seed}/{k}") for k, sub in schema["properties"].items()}
    digest = hashlib.sha256(seed.encode()).digest()
    if schema["type"] == "array":
        return quotes_from(seed, digest)
    if schema["type"] == "number":
        return int.from_bytes(digest[:4], "big") % 1001 / 10
    return f"Strong on results, thin on detail (fake {digest.hex()[:6]})."


def quotes_from(text: str, digest: bytes) -> list[str]:
    """One or two passages of the application in a prompt; none if there is nothing to quote."""
    block = re.search(r"<application>\n(.*)\n</application>", text, re.DOTALL)
    found = [" ".join(one.split()) for one in strings_of(json.loads(block[1]))] if block else []
    texts = [one[:80] for one in found if sum(map(str.isalnum, one[:80])) >= 3]
    return [texts[byte % len(texts)] for byte in digest[: 1 + digest[9] % 2] if texts]


def strings_of(document: Any) -> list[str]:
    """The strings of an application's payload."""
    match document:
        case {"application": payload}:
            return strings_of(list(payload.values()))
        case dict():
            return strings_of(list(document.values()))
        case list():
            return [text for value in document for text in strings_of(value)]
    return [document] if isinstance(document, str) else []


def message_of(request: Request, text: str, **changes: Any) -> bytes:
    """A response body around this text."""
    rubric = sum(len(block["text"]) for block in request.body.get("system", []))
    body = {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": MODEL_THAT_ANSWERS,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 1 + len(request.user_text) // 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": rubric // 4,
            "output_tokens": 1 + len(text) // 4,
            "service_tier": "standard",
        },
    }
    return json.dumps({**body, **changes}).encode()


def _limits(*, remaining: int = 995_000, reset_seconds: int = 20) -> dict[str, str]:
    """Rate limit headers: tokens as told, requests plentiful but reset later than those."""
    now = datetime.now(UTC)
    reset = (now + timedelta(seconds=reset_seconds)).isoformat().replace("+00:00", "Z")
    later = (now + timedelta(seconds=reset_seconds + 500)).isoformat().replace("+00:00", "Z")
    prefix = "anthropic-ratelimit"
    return {
        f"{prefix}-requests-limit": "100000",
        f"{prefix}-requests-remaining": "99800",
        f"{prefix}-requests-reset": later,
        f"{prefix}-tokens-limit": "1000000",
        f"{prefix}-tokens-remaining": str(remaining),
        f"{prefix}-tokens-reset": reset,
    }


Behaviour = Callable[[Connection, Request], None]


def _ok(client: Connection, request: Request) -> None:
    client.stopping.wait(client.answer_seconds)
    limits = (client.limits or _limits)()
    client.send(200, message_of(request, json.dumps(answer_to(request))), limits)


def refuse_for(seconds: float) -> Behaviour:
    """The quota is spent; whole seconds, as the API says it."""

    def respond(client: Connection, request: Request) -> None:
        limits = {**(client.limits or _limits)(), "retry-after": str(math.ceil(seconds))}
        client.error(429, _KIND, "number of requests has exceeded your rate limit", limits)

    return respond


def _saying(change: Callable[[Any], Any]) -> Behaviour:
    """A response whose text is the right answer after a change; a string is sent as it is."""

    def respond(client: Connection, request: Request) -> None:
        said = change(answer_to(request))
        client.send(200, message_of(request, said if type(said) is str else json.dumps(said)))

    return respond


def _with(**changes: Any) -> Behaviour:
    """A response with the right answer in a message that is wrong."""

    def respond(client: Connection, request: Request) -> None:
        client.send(200, message_of(request, json.dumps(answer_to(request)), **changes))

    return respond


def _failing(
    status: int, kind: str, message: str, headers: Callable[[], dict[str, str]] = dict
) -> Behaviour:
    return lambda client, _: client.error(status, kind, message, headers())


def _sending(status: int, body: bytes, **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda client, _: client.send(status, body, named)


def _in_half_a_minute() -> dict[str, str]:
    moment = datetime.now(UTC) + timedelta(seconds=30)
    return {"retry-after": format_datetime(moment, usegmt=True)}


def _hang(client: Connection, _: Request) -> None:
    client.stopping.wait(_PATIENCE_SECONDS)
    client.close_connection = True


def _hang_after_headers(client: Connection, request: Request) -> None:
    client.start(200, {"content-length": "500"})
    _hang(client, request)


def _drip(client: Connection, first: bytes) -> None:
    """One byte at a time, for as long as the client listens."""
    client.close_connection = True
    client.wfile.write(first)
    ends_at = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < ends_at and not client.stopping.wait(0.02):
        client.wfile.write(b" ")


def _drip_body(client: Connection, _: Request) -> None:
    client.start(200, {"content-length": "1000000"})
    _drip(client, b"")


def _cut(client: Connection, _: Request) -> None:
    client.close_connection = True


def _cut_mid_body(client: Connection, request: Request) -> None:
    body = message_of(request, json.dumps(answer_to(request)))
    client.start(200, {"content-length": str(len(body))})
    client.wfile.write(body[: len(body) // 2])
    client.close_connection = True


def _marked(mark: Any) -> Behaviour:
    return _saying(lambda right: {**right, "criteria": dict.fromkeys(right["criteria"], mark)})


INVENTED = "Won the Turing award twice."


def _with_inventions(right: Any) -> Any:
    """Each criterion has one quote more, which nobody wrote."""
    quotes = {key: [INVENTED, *true] for key, true in right["evidence"].items()}
    return {**right, "evidence": quotes}


_KIND = "rate_limit_error"
_WAIT = {"retry-after": str(RETRY_AFTER_SECONDS)}

BEHAVIOURS: dict[str, Behaviour] = {
    "ok": _ok,
    "invented_quotes": _saying(_with_inventions),
    "429": _failing(429, _KIND, "too many tokens", lambda: {**_limits(remaining=0), **_WAIT}),
    "429_date": _failing(429, _KIND, "too many tokens", _in_half_a_minute),
    "429_reset": _failing(429, _KIND, "too many tokens", lambda: _limits(remaining=0)),
    "429_bare": _failing(429, _KIND, "too many tokens"),
    "500": _failing(500, "api_error", "internal server error"),
    "503": _failing(503, "api_error", "unavailable", lambda: _WAIT),
    "529": _failing(529, "overloaded_error", "overloaded"),
    "502_html": _sending(502, b"<h1>Bad gateway</h1>", content_type="text/html"),
    "hang": _hang,
    "hang_after_headers": _hang_after_headers,
    "drip": _drip_body,
    "drip_headers": lambda client, _: _drip(client, b"HTTP/1.1 200 OK\r\nx-slow: "),
    "cut": _cut,
    "cut_mid_body": _cut_mid_body,
    "400": _failing(400, "invalid_request_error", "messages: wrong"),
    "401": _failing(401, "authentication_error", "invalid x-api-key"),
    "401_echo": lambda client, request: client.error(
        401, "authentication_error", f"bad key: {request.headers['authorization']}"
    ),
    "403": _failing(403, "permission_error", "not for you"),
    "404": _failing(404, "not_found_error", "model: no-such-model"),
    "413": _failing(413, "request_too_large", "request exceeds the maximum size"),
    "422": _failing(422, "invalid_request_error", "cannot be processed"),
    "redirect": _sending(307, b"", location="http://127.0.0.1:9/v1/messages"),
    "html": _sending(200, b"<h1>Welcome to the hotel network</h1>", content_type="text/html"),
    "broken_body": _sending(200, b'{"id": "msg_fake", "content": ['),
    "list_body": _sending(200, b"[1, 2]"),
    "empty_object": _sending(200, b"{}"),
    "malformed_json": _saying(lambda right: json.dumps(right)[:-5]),
    "not_json": _saying(lambda _: "I would give this a solid 80."),
    "not_an_object": _saying(lambda _: [80]),
    "out_of_range": _marked(100.01),
    "negative": _marked(-1),
    "nan": _marked(float("nan")),
    "infinite": _saying(lambda right: re.sub(r"\d+\.\d+", "1e999", json.dumps(right))),
    "boolean": _marked(True),
    "string_mark": _marked("80"),
    "missing_field": _saying(lambda right: {"rationale": right["rationale"]}),
    "missing_mark": _saying(lambda right: {**right, "criteria": {}}),
    "odd_quotes": _saying(lambda right: {**right, "evidence": dict.fromkeys(right["evidence"], 7)}),
    "extra_field": _saying(lambda right: {**right, "bonus": 100}),
    "empty_rationale": _saying(lambda right: {**right, "rationale": " \u200b\0"}),
    "long_rationale": _saying(lambda right: {**right, "rationale": "so " * 500}),
    "empty_content": _with(content=[]),
    "null_content": _with(content=None),
    "odd_content": _with(content=[7, {"type": "text"}]),
    "max_tokens": _with(stop_reason="max_tokens"),
    "refusal": _with(stop_reason="refusal"),
    "tool_use": _with(stop_reason="tool_use"),
    "no_usage": _with(usage=None),
    "odd_usage": _with(usage={"input_tokens": "many", "output_tokens": 1}),
}
