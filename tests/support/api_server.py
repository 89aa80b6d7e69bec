"""The front door as the product runs it: gunicorn with green workers, and a small client."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.stack.ports import free_port
from app.stack.programs import command
from app.stack.services import tail
from app.stack.spawn import Child, spawn
from app.stack.spec import ProcessSpec

#: A status line of an answer in a raw stream.
STATUS_LINE = b"HTTP/1.1 "
MEGABYTE = 1_048_576


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes
    seconds: float = 0.0

    def json(self) -> Any:
        return json.loads(self.body)


class ApiServer:
    """One gunicorn and the way to talk to it."""

    def __init__(self, child: Child, port: int, log: Path, blobs: Path) -> None:
        self.child = child
        self.port = port
        self.log = log
        #: Where it keeps large payloads.
        self.blobs = blobs

    def request(
        self,
        method: str,
        path: str,
        body: bytes | str | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = 20.0,
    ) -> Answer:
        """One request on a connection of its own."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            read = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, read, time.monotonic() - began)
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, None, headers)

    def post(
        self,
        body: Any,
        content_type: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
        path: str = "/applications",
    ) -> Answer:
        """Submit; anything but bytes is sent as JSON."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": content_type} if content_type else {}
        return self.request("POST", path, sent, {**given, **(headers or {})})

    def submit(self, candidate: str = "Ada", **fields: Any) -> str:
        """Submit an application that is in order; its id."""
        answer = self.post({"candidate": candidate, "payload": {}, **fields})
        assert answer.status == 202, answer
        return str(answer.json()["id"])

    def submit_job(self, type: str = "echo", **fields: Any) -> str:
        """Submit a job that is in order; its id."""
        answer = self.post({"type": type, **fields}, path="/jobs")
        assert answer.status == 202, answer
        return str(answer.json()["id"])

    def connect(self, seconds: float = 20.0) -> socket.socket:
        """A bare connection, for what no client library would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def exchange(self, sent: bytes, *, end: bool = True) -> bytes:
        """Everything the server answers to these bytes until it closes the connection.

        ``end``: say that nothing more will come, which also ends a connection kept alive.
        """
        with self.connect() as wire:
            try:
                wire.sendall(sent)
                if end:
                    wire.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused before the end; the answer is there to be read
            return read_all(wire)

    def workers(self) -> list[psutil.Process]:
        """The processes behind the port."""
        return psutil.Process(self.child.pid).children()

    def resident_megabytes(self) -> float:
        """Memory of all workers together."""
        return sum(worker.memory_info().rss for worker in self.workers()) / MEGABYTE


def read_all(wire: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    chunks = []
    try:
        while chunk := wire.recv(65_536):
            chunks.append(chunk)
    except ConnectionResetError:
        pass
    return b"".join(chunks)


def parse_raw(stream: bytes) -> Answer:
    """The first answer of a raw stream."""
    head, _, body = stream.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    return Answer(int(first.split()[1]), headers, body[: int(headers.get("content-length", 0))])


@contextmanager
def serving(database_url: str, home: Path, **settings: Any) -> Iterator[ApiServer]:
    """The API on a port of its own; ``settings`` by their names without prefix.

    Nothing listens where it looks for the broker, which must not matter to anybody.
    """
    port = settings.pop("port", None) or free_port()
    blobs = home / f"blobs-{port}"
    blobs.mkdir(parents=True)
    given = {
        "database_url": database_url,
        "broker_url": "amqp://guest:guest@127.0.0.1:1//",
        "anonymous_tenant": "demo",
        "api_workers": 2,
        "blob_url": blobs,
        "port": port,
        **settings,
    }
    env = {f"FAIRLINE_{name.upper()}": str(value) for name, value in given.items()}
    argv = command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()")
    spec = ProcessSpec(f"api-{port}", argv, env)
    log = home / f"{spec.name}.log"
    child = spawn(spec, os.environ, log)
    server = ApiServer(child, port, log, blobs)
    try:
        wait_until_serving(server, int(given["api_workers"]))
        yield server
    finally:
        # At once: gunicorn takes seconds to say goodbye, and nobody here listens any more.
        child.kill()
        child.popen.wait()


def wait_until_serving(server: ApiServer, workers: int, seconds: float = 90.0) -> None:
    """Return once every worker has loaded the application."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.child.poll() is None:
        try:
            if len(server.workers()) >= workers and server.get("/healthz").status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"the API did not start:\n{tail(server.log, 40)}")
