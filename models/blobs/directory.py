"""Blobs as files below one folder: a local disk, or a network file system that all hosts mount.

A put writes a temporary file beside its target, syncs it, renames it and syncs the folder: a reader
sees a whole blob or none, and a put that returned survives a power cut. A process that is killed in
one leaves a temporary file, which the next listing removes when it is an hour old.

The folder itself is never created: if it is missing, a mount is missing, and what would be written
below the mount point would be lost. An empty mount point looks like an empty store. Files belong
to the user of the process alone.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from models.blobs.keys import BlobEntry, check_key, is_key
from models.store.errors import BlobError, BlobMissing

P = ParamSpec("P")
T = TypeVar("T")

#: After this time no process can still be writing a temporary file.
ABANDONED_SECONDS = 3600.0

#: What is raised for a path without a file.
NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
#: No key has a part that starts with a dot.
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


class DirectoryBlobs:
    """A blob store in a folder. Safe to share between threads, greenlets and processes."""

    def __init__(self, root: str) -> None:
        self.root = root
        #: Folders whose own entry is on disk: two for each of our 256 prefixes at most.
        self._durable: set[str] = set()

    def put(self, key: str, data: bytes) -> None:
        """Store a blob; it is durable on return."""
        with self._refusals(f"write {key}"):
            off_loop(self._write, self._path(key), data)

    def get(self, key: str) -> bytes:
        """The blob, whole."""
        with self._refusals(f"read {key}"):
            try:
                return off_loop(Path(self._path(key)).read_bytes)
            except NO_FILE as error:
                self._require_root()
                raise BlobMissing(f"no blob {key} in {self.root}") from error

    def delete(self, key: str) -> None:
        """Remove a blob. Not synced: one that a power cut brings back is found again."""
        with self._refusals(f"delete {key}"):
            try:
                off_loop(os.unlink, self._path(key))
            except NO_FILE:
                self._require_root()

    def entries(self, folder: str = "") -> Iterator[BlobEntry]:
        """All blobs, or those of one folder of the root, in no order; abandoned temporary files are
        removed in passing.

        Walks in the caller's thread, a file at a time.
        """
        with self._refusals("list blobs"):
            now = self._now()
            if not folder:
                yield from self._walk(self.root, "", now)
            elif os.path.isdir(path := self._path(folder)):
                yield from self._walk(path, f"{folder}/", now)

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))

    def _require_root(self) -> None:
        """A blob can only be missing from a store that is there."""
        os.stat(os.path.join(self.root, "."))

    @contextmanager
    def _refusals(self, act: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(self.root):
                reason = "there is no such folder"
            raise BlobError(f"cannot {act} in {self.root}: {reason}") from error

    def _write(self, path: str, data: bytes) -> None:
        folder = os.path.dirname(path)
        self._make_durable(folder)
        temporary = os.path.join(folder, f".{os.urandom(8).hex()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb", buffering=0):
                left = memoryview(data)
                while left:
                    left = left[os.write(descriptor, left) :]
                # Before the rename: a name must never be on disk ahead of its bytes.
                os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)

    def _make_durable(self, folder: str) -> None:
        """Create what is missing between the root and a folder.

        That a folder exists does not say that its maker has synced its parent yet, so each process
        syncs it once itself.
        """
        if folder == self.root or (folder in self._durable and os.path.isdir(folder)):
            return
        parent = os.path.dirname(folder)
        self._make_durable(parent)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        _sync_folder(parent)
        self._durable.add(folder)

    def _now(self) -> float:
        """The time by the clock that stamps the files, which is a server's on a network mount."""
        # A touch, not a new file: a full disk must still be listed, or nothing could be deleted.
        os.utime(self.root)
        return os.stat(self.root).st_mtime

    def _walk(self, folder: str, prefix: str, now: float) -> Iterator[BlobEntry]:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if _TEMPORARY.fullmatch(entry.name):
                        if now - _modified(entry) >= ABANDONED_SECONDS:
                            os.unlink(entry.path)
                    elif not is_key(key := prefix + entry.name):
                        continue
                    elif entry.is_dir(follow_symlinks=False):
                        yield from self._walk(entry.path, f"{key}/", now)
                    elif entry.is_file(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        yield BlobEntry(key, found.st_size, now - found.st_mtime)
                except FileNotFoundError:
                    continue  # deleted since the folder was read


def _modified(entry: os.DirEntry[str]) -> float:
    return entry.stat(follow_symlinks=False).st_mtime


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def off_loop(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``act(...)``, under gevent in one of the hub's native threads; no green primitive in it.

    gevent makes sockets green, not files: an ``fsync`` that takes a second on a busy disk would
    stop every greenlet of the process for that second, heartbeats included. A greenlet that is
    killed while it waits does not stop the call.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return act(*args, **kwargs)
    from gevent import get_hub

    def settled() -> tuple[T | None, Exception | None]:
        # Raised in the thread, an error is printed by the hub before the caller sees it.
        try:
            return act(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001 - carried to the caller whole
            return None, error

    value, error = get_hub().threadpool.apply(settled)
    if error is not None:
        raise error
    return cast(T, value)
