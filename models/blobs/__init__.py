"""The blob store: what is too large for a row lives here, under a key that the row holds.

A blob is written before the row that names it and deleted after it, so a row never points at
nothing; a blob that no row names is an orphan, found by ``list`` and its age. The store does not
read rows: the collector of orphans asks ``job_of`` and the database.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from models.blobs.directory import DirectoryBlobs, off_loop
from models.blobs.keys import (
    CELLS,
    BlobEntry,
    cell_key,
    cell_of,
    checkpoint_key,
    job_of,
    payload_key,
)
from models.blobs.s3 import S3Blobs
from models.store.errors import BlobError, BlobMissing

__all__ = [
    "CELLS",
    "INLINE_BYTES",
    "BlobEntry",
    "BlobError",
    "BlobMissing",
    "BlobStore",
    "cell_key",
    "cell_of",
    "checkpoint_key",
    "disk_space",
    "job_of",
    "open_blobs",
    "payload_key",
]

#: What is larger goes to the store.
INLINE_BYTES = 65_536

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*|")


class BlobStore(Protocol):
    """A place for bytes by key. Every method may raise ``BlobError``."""

    def put(self, key: str, data: bytes) -> None:
        """Store a blob; it is durable on return. Overwriting the same key is fine."""

    def get(self, key: str) -> bytes:
        """The blob, whole, or ``BlobMissing``."""

    def delete(self, key: str) -> None:
        """Remove a blob; an absent one is fine."""

    def entries(self, folder: str = "") -> Iterator[BlobEntry]:
        """All blobs, or those of one folder of the root, with their ages by the store's own clock;
        lazily, in bounded memory."""


def open_blobs(url: str) -> DirectoryBlobs | S3Blobs:
    """The store at a URL, or a ``ValueError`` that does not repeat it: it may hold a password.

    ``file:///var/lib/fairline/blobs``, or the plain path, is a folder; ``s3://bucket/prefix`` a
    bucket at Amazon. ``?endpoint=https://host:9000`` means another store that speaks S3,
    ``&region=eu-central-1`` a region other than the configured one. Touches nothing: a store that
    is away shows at its first use.
    """
    if not url.strip() or "\0" in url:
        raise ValueError("the URL of the blob store is empty")
    if "://" not in url:
        return DirectoryBlobs(os.path.abspath(url))
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return _bucket(parts)
    if parts.scheme != "file":
        raise ValueError(f"blobs live in a folder, file:// or s3://, not in {parts.scheme}://")
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError("a blob folder is named file:///absolute/path")
    if parts.query or parts.fragment:
        raise ValueError("a blob folder takes no options")
    return DirectoryBlobs(os.path.abspath(unquote(parts.path)))


def disk_space(store: BlobStore) -> tuple[int, int] | None:
    """Free and total bytes of the file system of a folder; None if there is none to ask."""
    if not isinstance(store, DirectoryBlobs):
        return None
    try:
        return off_loop(_space, store.root)
    except OSError:
        return None


def _space(folder: str) -> tuple[int, int]:
    # The folder is made by the first blob.
    existing = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return usage.free, usage.total


def _bucket(parts: SplitResult) -> S3Blobs:
    if "@" in parts.netloc:
        raise ValueError("credentials do not belong into the blob URL; AWS_* variables hold them")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError("a blob bucket is named s3://bucket/prefix")
    prefix = parts.path.strip("/")
    if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
        raise ValueError("the prefix of a blob bucket has letters, digits and ._-/ only")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.fragment or not options.keys() <= {"endpoint", "region"} or "" in options.values():
        raise ValueError("a blob bucket takes the options endpoint and region only")
    endpoint = options.get("endpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
    return S3Blobs(parts.netloc, prefix, endpoint=endpoint, region=options.get("region"))


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    plain = not ("@" in parts.netloc or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or not plain:
        raise ValueError("the endpoint of a blob bucket is http(s)://host:port")
