"""The blob store in a folder: power cuts, kills, full and missing disks, greenlets.

A full disk is played twice: the kernel's own way with a limit on the size of files, in a process
of its own (half of the blob is then really written), and by calls that raise ``ENOSPC``.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from models.blobs import BlobError, BlobMissing, BlobStore, open_blobs, payload_key
from models.jobs.ids import new_id
from tests.support.blob_keys import keys_in

HOUR = 3600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(root: Path) -> BlobStore:
    return open_blobs(str(root))


@pytest.fixture
def key() -> str:
    return payload_key(new_id())


def files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir())


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_blob_is_a_private_file_named_after_its_key(
    root: Path, store: BlobStore, key: str
) -> None:
    store.put(key, b"x")
    assert files(root) == [key]
    assert stat.S_IMODE((root / key).stat().st_mode) == 0o600
    assert stat.S_IMODE((root / key).parent.stat().st_mode) == 0o700


def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_return(
    root: Path, store: BlobStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root)
        folder, name = os.path.split(path)
        seen.append(f"bytes in {folder}" if name.endswith(".tmp") else f"folder {path}")
        fsync(descriptor)

    def noted_replace(source: str, target: str) -> None:
        seen.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    folder = os.path.dirname(key)
    store.put(key, b"x")
    blob = [f"bytes in {folder}", "name", f"folder {folder}"]
    assert seen == ["folder .", "folder payloads", *blob]
    seen.clear()
    store.put(key, b"y")
    assert seen == blob


def test_a_folder_somebody_removed_is_made_again(root: Path, store: BlobStore, key: str) -> None:
    store.put(key, b"x")
    store.delete(key)
    (root / key).parent.rmdir()
    store.put(key, b"y")
    assert store.get(key) == b"y"


KILLED = """
import os, signal, sys
from models.blobs import open_blobs
os.fsync = lambda descriptor: os.path.isdir(f"/proc/self/fd/{descriptor}") or os.kill(
    os.getpid(), signal.SIGKILL)
open_blobs(sys.argv[1]).put(sys.argv[2], b"x" * 1_000_000)
"""


def test_a_killed_writer_leaves_a_file_that_is_no_blob_and_goes_after_an_hour(
    root: Path, store: BlobStore, key: str
) -> None:
    assert run(KILLED, str(root), key).returncode == -signal.SIGKILL
    (left,) = files(root)
    with pytest.raises(BlobMissing):
        store.get(key)
    assert list(keys_in(store, 0)) == []
    assert files(root) == [left]
    os.utime(root / left, (time.time() - 2 * HOUR,) * 2)
    assert list(keys_in(store, 0)) == []
    assert files(root) == []


LIMITED = """
import resource, sys
from models.blobs import BlobError, open_blobs
store, key = open_blobs(sys.argv[1]), sys.argv[2]
store.put(key, b"before")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put(key, b"x" * 1_000_000)
except BlobError as error:
    print(error)
"""


def test_a_disk_that_takes_half_a_blob_keeps_the_old_one_and_no_rest(
    root: Path, store: BlobStore, key: str
) -> None:
    done = run(LIMITED, str(root), key)
    assert done.stdout == f"cannot write {key} in {root}: File too large\n", done.stderr
    assert store.get(key) == b"before"
    assert files(root) == [key]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open", "mkdir"])
@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only"), (errno.EIO, "Input/output")],
)
def test_a_disk_that_refuses_is_named_and_leaves_nothing(
    root: Path, store: BlobStore, key: str, monkeypatch: pytest.MonkeyPatch, call: str, number: int,
    text: str,
) -> None:  # fmt: skip
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(BlobError, match=f"write {key} in {root}: {text}"):
            store.put(key, b"x" * 1000)
    assert files(root) == []
    store.put(key, b"after")
    assert store.get(key) == b"after"


def test_a_full_disk_can_still_be_listed_and_emptied(
    root: Path, store: BlobStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.put(key, b"x")
    for call in ("open", "write", "mkdir", "replace"):
        monkeypatch.setattr(os, call, full)
    for found in keys_in(store, 0):
        store.delete(found)
    assert files(root) == []


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so it becomes somebody else for a moment."""
    if (user := os.geteuid()) != 0:
        yield
        return
    os.seteuid(65432)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_folder_without_permission_is_an_error(key: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        store = open_blobs(folder)
        with unprivileged(), pytest.raises(BlobError, match=f"in {folder}: Permission denied"):
            store.put(key, b"x")
        assert files(Path(folder)) == []
        os.chmod(folder, 0o000)
        with unprivileged(), pytest.raises(BlobError, match="Permission denied") as refused:
            store.get(key)
        assert not isinstance(refused.value, BlobMissing)
        os.chmod(folder, 0o700)


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_a_missing_folder_is_an_error_and_never_a_missing_blob(
    root: Path, key: str, kind: str
) -> None:
    place = root / "unmounted"
    if kind == "file":
        place.touch()
    before = files(root)
    store = open_blobs(str(place))
    acts = [
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: list(keys_in(store, 0)),
    ]
    for act in acts:
        with pytest.raises(BlobError, match=f"in {place}: there is no such folder") as refused:
            act()
        assert not isinstance(refused.value, BlobMissing)
    assert files(root) == before


def test_a_listing_follows_no_link_and_can_be_left_early(
    root: Path, store: BlobStore, key: str
) -> None:
    store.put(key, b"x")
    (root / "payloads" / "loop").symlink_to(root)
    (root / "payloads" / "link").symlink_to(root / key)
    assert list(keys_in(store, 0)) == [key]
    listing = keys_in(store, 0)
    assert next(listing) == key
    del listing


GREEN = """
from gevent import monkey
monkey.patch_all()
import os, sys
import gevent
from models.blobs import BlobError, open_blobs, payload_key
from models.jobs.ids import new_id
from tests.support.blob_keys import keys_in

blocking_sleep = monkey.get_original("time", "sleep")
store, syncing, most, ticks = open_blobs(sys.argv[1]), [], 0, 0

def sync(descriptor):
    global most
    syncing.append(descriptor)
    most = max(most, len(syncing))
    blocking_sleep(0.1)
    syncing.remove(descriptor)

os.fsync = sync

def tick():
    global ticks
    while True:
        gevent.sleep(0.005)
        ticks += bool(syncing)

ticker = gevent.spawn(tick)
keys = [payload_key(new_id()) for _ in range(5)]
gevent.joinall([gevent.spawn(store.put, key, key.encode()) for key in keys], raise_error=True)
assert [store.get(key) for key in keys] == [key.encode() for key in keys]
assert most > 1, "one after the other"
assert ticks > 3, ticks
try:
    open_blobs("/nowhere/at/all").put(keys[0], b"x")
except BlobError as error:
    print(error)
"""


def test_under_gevent_a_slow_disk_stops_no_other_greenlet(root: Path) -> None:
    done = run(GREEN, str(root))
    assert done.returncode == 0, done.stderr
    assert "/nowhere/at/all: there is no such folder" in done.stdout
    assert done.stderr == ""
