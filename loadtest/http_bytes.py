"""HTTP/1.1 as bytes: requests built once, answers read with as little work as they allow."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple

LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


class Response(NamedTuple):
    """The parts of an answer that a load generator looks at."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header; empty if it is not there."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return ""


def request_bytes(request: Request, port: int) -> bytes:
    """The request as it goes over the wire."""
    body = request.body.encode()
    headers = {"Host": f"127.0.0.1:{port}", **request.headers}
    if body:
        headers |= {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{request.method} {request.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def read_response(buffer: bytes) -> Response | None:
    """The answer, if all of it has arrived. Only answers with a length, or without a body."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    status = int(buffer[9:12])
    head = buffer[:end]
    start = head.lower().find(LENGTH)
    if start < 0:
        if status not in (204, 304):
            raise ValueError(f"an answer without a length: {head!r}")
        return Response(status, head, b"")
    stop = head.find(b"\r", start)
    length = int(head[start + len(LENGTH) : stop if stop >= 0 else None])
    body = buffer[end + 4 :]
    return Response(status, head, body) if len(body) >= length else None


def applications(count: int, prefix: str = "Candidate") -> list[Request]:
    """Submissions that differ in candidate, role and content, of a few hundred bytes each."""
    return [
        Request(
            "POST",
            "/applications",
            body=json.dumps(
                {
                    "candidate": f"{prefix} {number}",
                    "role": ("engineer", "designer", "analyst", "general")[number % 4],
                    "payload": {
                        "years": number % 30,
                        "skills": ["python", "sql", "queues", "operations"][: 1 + number % 4],
                        "letter": f"I have kept {number} systems running. " * (1 + number % 5),
                    },
                }
            ),
        )
        for number in range(count)
    ]
