"""A fake Claude that also sends broken connections, bodies and answers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar

from loadtest.fakes.claude import FakeClaude, Handler
from loadtest.fakes.claude_behaviours import (
    BEHAVIOURS,
    LIMITED,
    PATIENCE_SECONDS,
    Behaviour,
    Request,
    answer_to,
    failing,
    hang,
    limits_of,
    message_of,
)

INVENTED = "Won the Turing award twice."
_HTML = {"content-type": "text/html"}


def in_half_a_minute(_: Handler) -> dict[str, str]:
    moment = datetime.now(UTC) + timedelta(seconds=30)
    return {"retry-after": format_datetime(moment, usegmt=True)}


def hang_after_headers(client: Handler, request: Request) -> None:
    client.start(200, {"content-length": "500"})
    hang(client, request)


def drip(client: Handler, first: bytes) -> None:
    """One byte at a time, for as long as the client listens."""
    client.close_connection = True
    client.wfile.write(first)
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends_at and not client.fake.stopping.wait(0.02):
        client.wfile.write(b" ")


def drip_body(client: Handler, _: Request) -> None:
    client.start(200, {"content-length": "1000000"})
    drip(client, b"")


def cut_mid_body(client: Handler, request: Request) -> None:
    body = message_of(request, answer_to(request))
    client.start(200, {"content-length": str(len(body))})
    client.wfile.write(body[: len(body) // 2])
    client.close_connection = True


#: Responses that are no message: status, body and headers.
BODIES: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "403_html": (403, b"<h1>Request blocked</h1>", _HTML),
    "502_html": (502, b"<h1>Bad gateway</h1>", _HTML),
    "redirect": (307, b"", {"location": "http://127.0.0.1:9/v1/messages"}),
    "html": (200, b"<h1>Welcome to the hotel network</h1>", _HTML),
    "broken_body": (200, b'{"id": "msg_fake", "content": [', {}),
    "list_body": (200, b"[1, 2]", {}),
    "empty_object": (200, b"{}", {}),
}
#: Messages with the right answer and these wrong fields.
FIELDS: dict[str, dict[str, Any]] = {
    "empty_content": {"content": []},
    "null_content": {"content": None},
    "odd_content": {"content": [7, {"type": "text"}]},
    "max_tokens": {"stop_reason": "max_tokens"},
    "refusal": {"stop_reason": "refusal"},
    "tool_use": {"stop_reason": "tool_use"},
    "no_usage": {"usage": None},
    "odd_usage": {"usage": {"input_tokens": "many", "output_tokens": 1}},
}
#: Marks that are given to every criterion of an answer that is right otherwise.
MARKS = {
    "out_of_range": 100.01,
    "negative": -1,
    "nan": float("nan"),
    "boolean": True,
    "string_mark": "80",
}
#: What is said instead of the right answer.
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "invented_quotes": lambda right: {
        **right,
        "evidence": {key: [INVENTED, *true] for key, true in right["evidence"].items()},
    },
    "malformed_json": lambda right: json.dumps(right)[:-5],
    "not_an_object": lambda _: [80],
    "infinite": lambda right: re.sub(r"\d+\.\d+", "1e999", json.dumps(right)),
    "missing_field": lambda right: {"rationale": right["rationale"]},
    "missing_mark": lambda right: {**right, "criteria": {}},
    "odd_quotes": lambda right: {**right, "evidence": dict.fromkeys(right["evidence"], 7)},
    "extra_field": lambda right: {**right, "bonus": 100},
    "empty_rationale": lambda right: {**right, "rationale": " \u200b\0"},
    "long_rationale": lambda right: {**right, "rationale": "so " * 500},
}


def sending(status: int, body: bytes, headers: dict[str, str]) -> Behaviour:
    return lambda client, _: client.send(status, body, headers)


def saying(
    change: Callable[[Any], Any] | None = None, mark: Any = None, **fields: Any
) -> Behaviour:
    """A message with another answer, another mark for every criterion, or other fields."""

    def respond(client: Handler, request: Request) -> None:
        answer = answer_to(request)
        if mark is not None:
            answer["criteria"] = dict.fromkeys(answer["criteria"], mark)
        client.send(200, message_of(request, change(answer) if change else answer, **fields))

    return respond


class MisbehavingClaude(FakeClaude):
    """`FakeClaude` with every way to misbehave."""

    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        **BEHAVIOURS,
        "401_echo": lambda client, request: client.error(
            401, "authentication_error", f"bad key: {request.headers['authorization']}"
        ),
        "429_date": failing(429, LIMITED, "too many tokens", in_half_a_minute),
        "429_reset": failing(429, LIMITED, "too many tokens", lambda client: limits_of(client, 0)),
        "429_bare": failing(429, LIMITED, "too many tokens"),
        "hang_after_headers": hang_after_headers,
        "drip": drip_body,
        "drip_headers": lambda client, _: drip(client, b"HTTP/1.1 200 OK\r\nx-slow: "),
        "cut_mid_body": cut_mid_body,
        **{name: sending(*body) for name, body in BODIES.items()},
        **{name: saying(change) for name, change in ANSWERS.items()},
        **{name: saying(mark=mark) for name, mark in MARKS.items()},
        **{name: saying(**fields) for name, fields in FIELDS.items()},
    }
