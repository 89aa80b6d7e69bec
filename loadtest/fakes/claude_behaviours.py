"""How the fake Claude can behave, by name: functions of the connection and the request."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtest.fakes.claude import Handler

MODEL_THAT_ANSWERS = "claude-haiku-5-5"
RETRY_AFTER_SECONDS = 7
#: No misbehaviour outlasts this, so that a forgotten server frees its threads.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Request:
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def user_text(self) -> str:
        """All text of the user's turns."""
        blocks = [b for m in self.body["messages"] for b in m["content"]]
        return "\n".join(block["text"] for block in blocks)


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
        case {"application": dict() as payload}:
            return strings_of(list(payload.values()))
        case {"application": str() as payload}:
            return [payload]
        case dict():
            return strings_of(list(document.values()))
        case list():
            return [text for value in document for text in strings_of(value)]
    return [document] if isinstance(document, str) else []


def message_of(request: Request, answer: Any, **changes: Any) -> bytes:
    """A response body around an answer; a string is sent as it is."""
    text = answer if type(answer) is str else json.dumps(answer)
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


def limits_of(client: Handler, remaining: int = 995_000) -> dict[str, str]:
    """Rate limit headers: of the quota, or of tokens, and of requests that are reset later."""
    if client.fake.quota:
        return client.fake.quota.headers()
    now = datetime.now(UTC)
    reset, later = (
        (now + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        for seconds in (20, 520)
    )
    prefix = "anthropic-ratelimit"
    return {
        f"{prefix}-requests-limit": "100000",
        f"{prefix}-requests-remaining": "99800",
        f"{prefix}-requests-reset": later,
        f"{prefix}-tokens-limit": "1000000",
        f"{prefix}-tokens-remaining": str(remaining),
        f"{prefix}-tokens-reset": reset,
    }


Behaviour = Callable[["Handler", Request], None]
Headers = Callable[["Handler"], dict[str, str]]
LIMITED = "rate_limit_error"


def ok(client: Handler, request: Request) -> None:
    client.fake.stopping.wait(client.fake.answer_seconds)
    client.send(200, message_of(request, answer_to(request)), limits_of(client))


def failing(status: int, kind: str, message: str, headers: Headers = lambda _: {}) -> Behaviour:
    """An error in the API's format."""
    return lambda client, _: client.error(status, kind, message, headers(client))


def refuse_for(seconds: float) -> Behaviour:
    """The quota is spent; whole seconds, as in the API."""
    wait = {"retry-after": str(math.ceil(seconds))}
    words = "number of requests has exceeded your rate limit"
    return failing(429, LIMITED, words, lambda client: {**limits_of(client), **wait})


def hang(client: Handler, _: Request) -> None:
    client.fake.stopping.wait(PATIENCE_SECONDS)
    client.close_connection = True


def cut(client: Handler, _: Request) -> None:
    client.close_connection = True


_WAIT = {"retry-after": str(RETRY_AFTER_SECONDS)}

#: Errors: status, type, message and headers.
ERRORS: dict[str, tuple[Any, ...]] = {
    "429": (429, LIMITED, "too many tokens", lambda client: {**limits_of(client, 0), **_WAIT}),
    "500": (500, "api_error", "internal server error"),
    "503": (503, "api_error", "unavailable", lambda _: _WAIT),
    "529": (529, "overloaded_error", "overloaded"),
    "400": (400, "invalid_request_error", "messages: wrong"),
    "401": (401, "authentication_error", "invalid x-api-key"),
    "402": (402, "billing_error", "your account has no credit"),
    "400_unpaid": (400, "invalid_request_error", "Your credit balance is too low to go on."),
    "403": (403, "permission_error", "not for you"),
    "404": (404, "not_found_error", "model: no-such-model"),
    "413": (413, "request_too_large", "request exceeds the maximum size"),
    "422": (422, "invalid_request_error", "cannot be processed"),
}


def not_json(client: Handler, request: Request) -> None:
    client.send(200, message_of(request, "I would give this a solid 80."))


BEHAVIOURS: dict[str, Behaviour] = {
    "ok": ok,
    "hang": hang,
    "cut": cut,
    "not_json": not_json,
    **{name: failing(*error) for name, error in ERRORS.items()},
}
