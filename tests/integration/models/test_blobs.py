"""What every blob store does: one suite, run against a folder and against a bucket."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.blobs import (
    BlobError,
    BlobMissing,
    BlobStore,
    cell_key,
    cell_of,
    checkpoint_key,
    job_of,
    open_blobs,
    payload_key,
)
from models.blobs.s3 import S3Blobs
from models.jobs.ids import new_id
from tests.support.blob_keys import keys_in
from tests.support.fake_s3 import FakeS3, bucket_store

HOUR = 3600.0


@dataclass(frozen=True)
class Place:
    """A store, and the hands of whoever runs it."""

    store: BlobStore
    age: Callable[[str, float], None]
    plant: Callable[[str], None]
    sees: Callable[[], list[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeS3, S3Blobs]]:
    with bucket_store("some/prefix") as opened:
        yield opened


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        return in_bucket(*request.getfixturevalue("server"))
    (tmp_path / "blobs").mkdir()
    return in_folder(tmp_path / "blobs")


def in_bucket(fake: FakeS3, store: S3Blobs) -> Place:
    fake.reset()

    def age(key: str, seconds: float) -> None:
        data, _ = fake.objects[f"some/prefix/{key}"]
        fake.objects[f"some/prefix/{key}"] = data, fake.now() - seconds

    def plant(name: str) -> None:
        fake.objects[f"some/prefix/{name}"] = b"", fake.now() - 2 * HOUR

    return Place(store, age, plant, lambda: sorted(fake.objects))


def in_folder(root: Path) -> Place:
    def age(key: str, seconds: float) -> None:
        os.utime(root / key, (time.time() - seconds,) * 2)

    def plant(name: str) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
        age(name, 2 * HOUR)

    def sees() -> list[str]:
        return sorted(str(p) for p in root.parent.rglob("*") if p.is_file())

    return Place(open_blobs(f"file://{root}"), age, plant, sees)


@pytest.mark.parametrize("size", [0, 1, 65_537, 5_000_000])
def test_what_was_put_comes_back_to_the_byte(place: Place, size: int) -> None:
    data = os.urandom(size)
    key = payload_key(new_id())
    place.store.put(key, data)
    assert place.store.get(key) == data


def test_a_second_put_replaces_the_first(place: Place) -> None:
    key = checkpoint_key(new_id(), 3, 1)
    place.store.put(key, b"long ago and longer")
    place.store.put(key, b"now")
    assert place.store.get(key) == b"now"
    assert list(keys_in(place.store, 0)) == [key]


def test_an_absent_blob_is_missing_and_may_be_deleted(place: Place) -> None:
    key = payload_key(new_id())
    for absent in (key, "payloads", f"{key}/below"):
        with pytest.raises(BlobMissing, match=absent):
            place.store.get(absent)
        place.store.delete(absent)


def test_a_deleted_blob_is_gone(place: Place) -> None:
    key, other = payload_key(new_id()), payload_key(new_id())
    for one in (key, other):
        place.store.put(one, b"x")
    place.store.delete(key)
    place.store.delete(key)
    with pytest.raises(BlobMissing):
        place.store.get(key)
    assert place.store.get(other) == b"x"


def test_a_listing_holds_the_old_and_not_the_young(place: Place) -> None:
    old, young = [payload_key(new_id()) for _ in range(5)], checkpoint_key(new_id(), 1, 0)
    for key in (*old, young):
        place.store.put(key, b"x")
    for key in old:
        place.age(key, 2 * HOUR)
    assert sorted(keys_in(place.store, HOUR)) == sorted(old)
    assert sorted(keys_in(place.store, 0)) == sorted([*old, young])
    assert list(keys_in(place.store, 3 * HOUR)) == []


def test_entries_say_how_large_and_old_blobs_are(place: Place) -> None:
    small, large = payload_key(new_id()), checkpoint_key(new_id(), 1, 0)
    place.store.put(small, b"x")
    place.store.put(large, b"x" * 70_000)
    place.age(small, 2 * HOUR)
    found = {one.key: one for one in place.store.entries()}
    assert {key: one.bytes for key, one in found.items()} == {small: 1, large: 70_000}
    assert found[small].age_seconds >= 2 * HOUR - 1 > HOUR > found[large].age_seconds


def test_entries_of_a_folder_are_those_alone(place: Place) -> None:
    assert list(place.store.entries("cells")) == []
    marks = [cell_key(1), cell_key(22)]
    for key in (*marks, payload_key(new_id()), "cells-of-others/3"):
        place.store.put(key, b"")
    found = {one.key: one for one in place.store.entries("cells")}
    assert sorted(found) == marks
    assert [cell_of(key) for key in sorted(found)] == [1, 22]
    assert all(0 <= one.age_seconds < HOUR for one in found.values())
    assert sum(cell_of(one.key) is not None for one in place.store.entries()) == 2


def test_a_blob_that_is_put_again_is_young_again(place: Place) -> None:
    key = payload_key(new_id())
    place.store.put(key, b"x")
    place.age(key, 2 * HOUR)
    place.store.put(key, b"x")
    assert list(keys_in(place.store, HOUR)) == []


def test_blobs_can_be_deleted_while_they_are_listed(place: Place) -> None:
    for _ in range(20):
        place.store.put(payload_key(new_id()), b"x")
    for key in keys_in(place.store, 0):
        assert job_of(key) is not None
        place.store.delete(key)
    assert list(keys_in(place.store, 0)) == []


def test_strangers_beside_the_blobs_are_not_listed(place: Place) -> None:
    place.plant("payloads/Thumbs.db")
    place.plant("payloads/.hidden")
    place.plant("notes")
    assert [job_of(key) for key in keys_in(place.store, HOUR)] == [None]


HOSTILE = [
    "", "/", "..", ".", "/etc/passwd", "../x", "payloads/../../x", "payloads//x", "payloads/",
    "payloads/.x", "a/./b", "a..b", "a\\b", "a\0b", "a\nb", "a b", "A", "é", "a?b", "a#b",
    "%2e%2e/x", "~", "C:x", "x" * 201, "a/" * 150 + "a", "payloads/x\n",
]  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_key_is_refused_and_touches_nothing(place: Place, key: str) -> None:
    before = place.sees()
    for act in (place.store.get, place.store.delete, lambda k: place.store.put(k, b"x")):
        with pytest.raises(BlobError, match="not a key") as refused:
            act(key)
        assert not isinstance(refused.value, BlobMissing)
    assert place.sees() == before


def test_concurrent_puts_of_one_key_leave_one_of_them_whole(place: Place) -> None:
    key = payload_key(new_id())
    writers = 8
    blobs = [bytes([n]) * (300_000 + n) for n in range(writers)]
    together = threading.Barrier(writers + 1)
    place.store.put(key, blobs[0])

    def write(data: bytes) -> None:
        together.wait(10)
        place.store.put(key, data)

    with ThreadPoolExecutor(writers) as pool:
        done = [pool.submit(write, data) for data in blobs]
        together.wait(10)
        while not all(one.done() for one in done):
            assert place.store.get(key) in blobs
        for one in done:
            one.result()
    assert place.store.get(key) in blobs
    assert list(keys_in(place.store, 0)) == [key]
