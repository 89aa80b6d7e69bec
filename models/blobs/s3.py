"""Blobs as objects in a bucket: Amazon S3, or whatever speaks its protocol at an endpoint.

Credentials, and the region unless the URL names one, are found the usual AWS way. The role needs
``s3:PutObject``, ``GetObject``, ``DeleteObject`` on the prefix and ``s3:ListBucket``; without the
last S3 says "denied" for what is merely absent. In a bucket with versions a delete hides.

Every wait on the network is bounded and three attempts are made, so a silent store costs half a
minute. One that drips bytes is not bounded here: a job has its own limit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from models.blobs.keys import BlobEntry, check_key, is_key
from models.store.errors import BlobError, BlobMissing

CONNECT_SECONDS = 2.0
READ_SECONDS = 10.0
ATTEMPTS = 3
#: Connections kept open; more callers than that open one each and close it again.
KEPT_CONNECTIONS = 50


class S3Blobs:
    """A blob store in a bucket. Safe to share between threads and greenlets, and across a fork."""

    def __init__(
        self, bucket: str, prefix: str, *, endpoint: str | None = None, region: str | None = None
    ) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.endpoint = endpoint
        self.region = region
        self._lock = threading.Lock()
        self._connected: tuple[int, Any] | None = None

    def put(self, key: str, data: bytes) -> None:
        """Store a blob; S3 has it on several disks on return."""
        with self._refusals(f"write {key}"):
            answer = self._client().put_object(**self._place(key), Body=data)
        self._expect("ETag", answer)

    def get(self, key: str) -> bytes:
        """The blob, whole."""
        with self._refusals(f"read {key}"):
            return self._read(self._place(key))

    def delete(self, key: str) -> None:
        """Remove a blob."""
        with self._refusals(f"delete {key}"):
            self._client().delete_object(**self._place(key))

    def entries(self, folder: str = "") -> Iterator[BlobEntry]:
        """All blobs, or those of one folder of the root, a page of a thousand at a time."""
        prefix = f"{self.prefix}{check_key(folder)}/" if folder else self.prefix
        position: dict[str, str] = {}
        while True:
            with self._refusals("list blobs"):
                page = self._client().list_objects_v2(Bucket=self.bucket, Prefix=prefix, **position)
            self._expect("IsTruncated", page)
            now = self._date_of(page)
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self.prefix)
                age = (now - entry["LastModified"]).total_seconds()
                if is_key(key):
                    yield BlobEntry(key, entry["Size"], age)
            if "NextContinuationToken" not in page:
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        with self._lock:
            if self._connected is not None:
                self._connected[1].close()
                self._connected = None

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.prefix + check_key(key)}

    def _read(self, place: dict[str, str]) -> bytes:
        from botocore.exceptions import (  # type: ignore[import-untyped]  # has no types
            IncompleteReadError,
            ResponseStreamingError,
        )

        for attempt in range(1, ATTEMPTS + 1):
            answer = self._client().get_object(**place)
            try:
                with closing(answer["Body"]) as body:
                    self._expect("ETag", answer)
                    data: bytes = body.read()
                    return data
            # The SDK repeats requests, but not answers that broke off.
            except (IncompleteReadError, ResponseStreamingError):
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _expect(self, field: str, answer: dict[str, Any]) -> None:
        """A 200 without what S3 always sends is a proxy's, and nothing was stored or read."""
        if field not in answer:
            raise BlobError(f"what answers for s3://{self.bucket} is no S3: {field} is missing")

    def _date_of(self, page: dict[str, Any]) -> datetime:
        """The store's own time: this host's clock may be wrong, and decides nothing."""
        try:
            return parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
        except (KeyError, ValueError) as error:
            raise BlobError(f"s3://{self.bucket} answers without its time") from error

    def _client(self) -> Any:
        """The client of this process.

        Made at the first call, because by then gevent has patched the sockets that the SDK is
        about to import; made again after a fork, because two processes on one connection would
        read each other's answers.
        """
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = os.getpid(), self._connect()
            return self._connected[1]

    def _connect(self) -> Any:
        import boto3  # type: ignore[import-untyped]  # has no types
        from botocore.config import Config  # type: ignore[import-untyped]  # has no types

        # Stores other than Amazon's know neither hosts named after buckets nor trailing
        # checksums. The signature covers the body there.
        foreign = self.endpoint is not None
        checksums = "when_required" if foreign else "when_supported"
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                max_pool_connections=KEPT_CONNECTIONS,
                s3={"addressing_style": "path" if foreign else "auto"},
                request_checksum_calculation=checksums,
                response_checksum_validation=checksums,
            ),
        )

    @contextmanager
    def _refusals(self, act: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            text = f"cannot {act} in s3://{self.bucket}/{self.prefix}: {error}"
            if isinstance(error, ClientError) and error.response["Error"]["Code"] == "NoSuchKey":
                raise BlobMissing(text) from error
            raise BlobError(text) from error
