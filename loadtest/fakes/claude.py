"""A local server that speaks the Messages API and misbehaves on demand.

``python -m loadtest.fakes.claude --port 9099`` is for trying the Claude scorer without an account;
tests use ``FakeClaude`` as a context manager. It checks requests as the API does (credentials,
version, fields, schema keywords) and answers any schema with numbers derived from the user's text,
so equal applications get equal answers. No test against it says how a model would score.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from loadtest.fakes.claude_behaviours import BEHAVIOURS, Behaviour, Request, refuse_for

_REFUSED_KEYWORDS = {"minimum", "maximum", "multipleOf", "minLength", "maxLength"}


class FakeQuota:
    """A token bucket of requests per minute; it saves up ``burst_seconds`` of them while idle."""

    def __init__(self, requests: float, *, burst_seconds: float = 60.0) -> None:
        self._limit = requests
        self._capacity = max(1.0, requests * burst_seconds / 60.0)
        self._level = self._capacity
        self._filled_at = time.monotonic()
        self._lock = threading.Lock()
        self.accepted = 0
        self.refused = 0

    def take(self) -> float | None:
        """Count a request; None if it fits, else the seconds to wait."""
        with self._lock:
            self._fill()
            if self._level < 1.0:
                self.refused += 1
                return (1.0 - self._level) * 60 / self._limit
            self._level -= 1.0
            self.accepted += 1
            return None

    def headers(self) -> dict[str, str]:
        """What is left of the limit, and when all of it is available again."""
        with self._lock:
            self._fill()
            left, missing = self._level, self._capacity - self._level
        full = datetime.now(UTC) + timedelta(seconds=missing * 60 / self._limit)
        prefix = "anthropic-ratelimit-requests"
        return {
            f"{prefix}-limit": f"{self._limit:.0f}",
            f"{prefix}-remaining": str(math.floor(left)),
            f"{prefix}-reset": full.isoformat().replace("+00:00", "Z"),
        }

    def _fill(self) -> None:
        now = time.monotonic()
        added = (now - self._filled_at) * self._limit / 60
        self._level, self._filled_at = min(self._capacity, self._level + added), now


class FakeClaude:
    """The server. ``behave`` with the name of a misbehaviour applies to all requests after it."""

    behaviours: ClassVar[Mapping[str, Behaviour]] = BEHAVIOURS

    def __init__(
        self,
        *,
        port: int = 0,
        api_key: str = "sk-test-key",
        answer_seconds: float = 0.0,
        quota: FakeQuota | None = None,
    ) -> None:
        self.api_key = api_key
        self.quota = quota
        self.answer_seconds = answer_seconds
        self.requests: list[Request] = []
        #: Addresses of the clients' connections.
        self.connections: set[tuple[str, int]] = set()
        #: Set when the server stops: whatever hangs or drips ends then.
        self.stopping = threading.Event()
        self._behaviour = "ok"
        self._every = 1
        self._lock = threading.Lock()
        handler = type("BoundHandler", (Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", port), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def behave(self, name: str, *, every: int = 1) -> None:
        """Misbehave in this way on each ``every``-th request; ``ok`` ends it."""
        if name not in self.behaviours:
            raise ValueError(f"no such behaviour: {name}")
        self._behaviour, self._every = name, every

    def record(self, request: Request, client: tuple[str, int]) -> Behaviour:
        """Note the request; how to treat it."""
        with self._lock:
            self.requests.append(request)
            self.connections.add(client)
            if self.quota and (wait := self.quota.take()) is not None:
                return refuse_for(wait)
            misbehaves = len(self.requests) % self._every == 0
            return self.behaviours[self._behaviour if misbehaves else "ok"]

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def stop(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> FakeClaude:
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The default of 5 makes the kernel drop some of fifty connections that arrive at once.
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that disconnect are expected."""


class Handler(BaseHTTPRequestHandler):
    """One connection; what the behaviours act on."""

    fake: FakeClaude
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if (problem := self._problem(raw)) is not None:
            self.error(*problem)
            return
        request = Request({k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
        self.fake.record(request, self.client_address)(self, request)

    def _problem(self, raw: bytes) -> tuple[int, str, str] | None:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        if self.fake.api_key not in (self.headers.get("x-api-key"), bearer):
            return 401, "authentication_error", "invalid x-api-key"
        if self.path != "/v1/messages":
            return 404, "not_found_error", f"no such path: {self.path}"
        if "anthropic-version" not in self.headers:
            return 400, "invalid_request_error", "anthropic-version: header is required"
        try:
            body = json.loads(raw)
            for field in ("model", "max_tokens", "messages"):
                if not body.get(field):
                    return 400, "invalid_request_error", f"{field}: Field required"
            if refused := _refused_keywords(body["output_config"]["format"]["schema"]):
                return 400, "invalid_request_error", f"schema: {refused} is not supported"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return 400, "invalid_request_error", f"request body: {error!r}"
        return None

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.start(status, {"content-length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Status and headers of a response."""
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("request-id", "req_fake")
        self.end_headers()

    def error(
        self, status: int, kind: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        body = {"type": "error", "error": {"type": kind, "message": message}}
        self.send(status, json.dumps(body).encode(), headers)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read ``requests`` instead."""


def _refused_keywords(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    found = _REFUSED_KEYWORDS & schema.keys()
    return found.union(*(_refused_keywords(value) for value in schema.values()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.fakes.claude", description=__doc__)
    parser.add_argument("--port", type=int, default=9099)
    parser.add_argument("--key", default="sk-test-key", help="the API key to accept")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long an answer takes")
    parser.add_argument("--behaviour", default="ok", choices=sorted(BEHAVIOURS))
    parser.add_argument("--every", type=int, default=1, help="misbehave on each n-th request")
    parser.add_argument("--requests-per-minute", type=float, help="refuse the requests beyond")
    given = parser.parse_args()
    quota = FakeQuota(given.requests_per_minute) if given.requests_per_minute else None
    fake = FakeClaude(port=given.port, api_key=given.key, answer_seconds=given.seconds, quota=quota)
    fake.behave(given.behaviour, every=given.every)
    print(
        f"FAIRLINE_SCORER=claude FAIRLINE_CLAUDE_BASE_URL={fake.url} "
        f"FAIRLINE_CLAUDE_API_KEY={given.key} make up",
        flush=True,
    )
    try:
        fake.serve()
    except KeyboardInterrupt:
        fake.stopping.set()


if __name__ == "__main__":
    main()
