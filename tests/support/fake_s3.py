"""A local server that speaks enough S3 for a blob store, and misbehaves on demand.

One bucket in memory: PUT, GET, DELETE and ListObjectsV2, path-style. It refuses what S3 refuses
(a wrong signature, a body that is not the signed one, another bucket) and keeps its own clock. It
knows no versions, no multipart uploads and no host names of buckets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from models.blobs import open_blobs
from models.blobs.s3 import S3Blobs

BUCKET = "fairline-test"
_REGION = "eu-central-1"
_KEY_ID, _SECRET = "AKIATEST", "a/secret+key"
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8}/[^/]+/s3/aws4_request), "
    r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})"
)
BEHAVIOURS = ("ok", "slow_down", "denied", "cut", "cut_body", "hang", "html")

#: What a client finds in its environment: the credentials, and nothing of the user's own.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": _KEY_ID,
    "AWS_SECRET_ACCESS_KEY": _SECRET,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


@contextmanager
def bucket_store(prefix: str) -> Iterator[tuple[FakeS3, S3Blobs]]:
    """A server, and a store in its bucket."""
    with pytest.MonkeyPatch.context() as patch, FakeS3() as fake:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        store = open_blobs(fake.url(prefix))
        assert isinstance(store, S3Blobs)
        yield fake, store
        store.close()


class FakeS3:
    """The server. ``behave`` applies to the next ``times`` requests, or to all."""

    def __init__(self) -> None:
        #: Set when the server stops: whatever hangs ends then.
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self.reset()

    def reset(self) -> None:
        """An empty bucket behind a server that behaves."""
        #: Name in the bucket → bytes and the server's time of the write.
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests: list[str] = []
        self.connections: set[tuple[str, int]] = set()
        self.page_size = 1000
        self.answer_seconds = 0.0
        #: How far the server's clock is ahead.
        self.ahead_seconds = 0.0
        self._behaviour, self._times = "ok", 0

    def url(self, prefix: str) -> str:
        """What ``open_blobs`` takes."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={_REGION}"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def now(self) -> float:
        return time.time() + self.ahead_seconds

    def behave(self, name: str, *, times: int = 1_000_000) -> None:
        if name not in BEHAVIOURS:
            raise ValueError(f"no such behaviour: {name}")
        with self._lock:
            self._behaviour, self._times = name, times

    def record(self, method: str, client: tuple[str, int]) -> str:
        """Note a request and say how to treat it."""
        with self._lock:
            self.requests.append(method)
            self.connections.add(client)
            self._times -= 1
            return self._behaviour if self._times >= 0 else "ok"

    def __enter__(self) -> FakeS3:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some of the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    fake: FakeS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_PUT(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        behaviour = self.fake.record(self.command, self.client_address)
        if self.fake.answer_seconds:
            self.fake.stopping.wait(self.fake.answer_seconds)
        if behaviour == "slow_down":
            self._error(503, "SlowDown", "Please reduce your request rate.")
        elif behaviour == "denied":
            self._error(403, "AccessDenied", "Access Denied")
        elif behaviour == "cut":
            self.close_connection = True
        elif behaviour == "hang":
            self.fake.stopping.wait(60)
            self.close_connection = True
        elif behaviour == "html":
            self._send(200, b"<html><p>Sign in to the wireless</p></html>")
        else:
            self._serve(body, cut=behaviour == "cut_body")

    def _serve(self, body: bytes, *, cut: bool) -> None:
        parts = urlsplit(self.path)
        _, bucket, *rest = parts.path.split("/", 2)
        if (refusal := self._refusal(body)) is not None:
            self._error(403, *refusal)
        elif bucket != BUCKET:
            self._error(404, "NoSuchBucket", "The specified bucket does not exist")
        elif not (name := unquote(rest[0] if rest else "")):
            self._list(parse_qs(parts.query, keep_blank_values=True))
        elif self.command == "PUT":
            self.fake.objects[name] = body, self.fake.now()
            self._send(200, b"", {"ETag": _etag(body)})
        elif self.command == "DELETE":
            self.fake.objects.pop(name, None)
            self._send(204, b"")
        elif name in self.fake.objects:
            data = self.fake.objects[name][0]
            self._send(200, data, {"ETag": _etag(data)}, cut=cut)
        else:
            self._error(404, "NoSuchKey", "The specified key does not exist.")

    def _list(self, query: dict[str, list[str]]) -> None:
        if query.get("list-type") != ["2"] or query.get("encoding-type") != ["url"]:
            self._error(400, "InvalidArgument", "ListObjectsV2 with url encoding only")
            return
        prefix = query["prefix"][0]
        after = base64.b64decode(query.get("continuation-token", [""])[0]).decode()
        size = min(self.fake.page_size, int(query.get("max-keys", ["1000"])[0]))
        names = sorted(n for n in self.fake.objects if n.startswith(prefix) and n > after)
        page, more = names[:size], len(names) > size
        contents = "".join(
            f"<Contents><Key>{quote(name)}</Key>"
            f"<LastModified>{_stamp(self.fake.objects[name][1])}</LastModified>"
            f"<Size>{len(self.fake.objects[name][0])}</Size></Contents>"
            for name in page
        )
        token = base64.b64encode(page[-1].encode()).decode() if more else ""
        answer = (
            f'<?xml version="1.0"?><ListBucketResult xmlns="{_NAMESPACE}">'
            f"<EncodingType>url</EncodingType><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{contents}"
            + (f"<NextContinuationToken>{token}</NextContinuationToken>" if more else "")
            + "</ListBucketResult>"
        )
        self._send(200, answer.encode(), {"Content-Type": "application/xml"})

    def _refusal(self, body: bytes) -> tuple[str, str] | None:
        """Signature Version 4, as S3 checks it."""
        found = _AUTHORIZATION.fullmatch(self.headers.get("authorization", ""))
        if found is None:
            return "AccessDenied", "Access Denied"
        key_id, scope, signed, signature = found.groups()
        if key_id != _KEY_ID:
            return "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist."
        digest = self.headers["x-amz-content-sha256"]
        if digest != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch", "The body is not what was signed."
        parts = urlsplit(self.path)
        headers = "".join(f"{h}:{self.headers[h].strip()}\n" for h in signed.split(";"))
        query = "&".join(sorted(parts.query.split("&")))
        request = "\n".join([self.command, parts.path, query, headers, signed, digest])
        summary = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, summary])
        key = f"AWS4{_SECRET}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature):
            return "SignatureDoesNotMatch", "The signature we calculated does not match."
        return None

    def _error(self, status: int, code: str, message: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        self._send(status, f'<?xml version="1.0"?>{text}'.encode())

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.fake.now(), usegmt=True)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _stamp(seconds: float) -> str:
    """S3 keeps whole seconds and writes them with three zeros."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
