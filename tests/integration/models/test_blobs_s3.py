"""The blob store in a bucket: pages, its clock, a server that misbehaves, greenlets, forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from models.blobs import BlobError, BlobMissing, open_blobs, payload_key
from models.blobs.s3 import S3Blobs
from models.jobs.ids import new_id
from tests.support.blob_keys import keys_in
from tests.support.fake_s3 import BUCKET, ENVIRONMENT, FakeS3, bucket_store

HOUR = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeS3, S3Blobs]]:
    with bucket_store("some/prefix") as opened:
        yield opened


@pytest.fixture
def fake(server: tuple[FakeS3, S3Blobs]) -> FakeS3:
    server[0].reset()
    return server[0]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK repeats at once."""
    backoff = "botocore.retries.standard.ExponentialBackoff.delay_amount"
    monkeypatch.setattr(backoff, lambda self, context: 0.0)


@pytest.fixture
def bucket(server: tuple[FakeS3, S3Blobs]) -> S3Blobs:
    return server[1]


def test_keys_lie_below_the_prefix_and_a_longer_prefix_is_somebody_elses(
    fake: FakeS3, bucket: S3Blobs
) -> None:
    key = payload_key(new_id())
    bucket.put(key, b"x")
    fake.objects[f"some/prefix2/{key}"] = b"other", fake.now() - 2 * HOUR
    assert f"some/prefix/{key}" in fake.objects
    assert list(keys_in(bucket, 0)) == [key]


def test_a_long_listing_is_fetched_page_by_page_as_it_is_read(
    fake: FakeS3, bucket: S3Blobs
) -> None:
    keys = sorted(payload_key(new_id()) for _ in range(7))
    for key in keys:
        fake.objects[f"some/prefix/{key}"] = b"", fake.now()
    fake.page_size = 3
    listing = keys_in(bucket, 0)
    assert [next(listing) for _ in range(3)] == keys[:3]
    assert fake.requests == ["GET"]
    assert list(listing) == keys[3:]
    assert fake.requests == ["GET"] * 3


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_ages_are_by_the_servers_clock(fake: FakeS3, bucket: S3Blobs, ahead: float) -> None:
    fake.ahead_seconds = ahead
    key = payload_key(new_id())
    bucket.put(key, b"x")
    assert list(keys_in(bucket, 0)) == [key]
    assert list(keys_in(bucket, 60)) == []


@pytest.mark.parametrize("behaviour", ["slow_down", "cut", "cut_body"])
def test_two_bad_answers_are_survived(fake: FakeS3, bucket: S3Blobs, behaviour: str) -> None:
    key = payload_key(new_id())
    bucket.put(key, b"x" * 100_000)
    fake.behave(behaviour, times=2)
    assert bucket.get(key) == b"x" * 100_000
    assert len(fake.requests) == 4


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("slow_down", "SlowDown"),
        ("denied", "AccessDenied"),
        ("cut", "closed"),
        ("cut_body", "IncompleteRead|Connection broken"),
    ],
)
def test_a_server_that_keeps_failing_is_an_error_with_its_reason(
    fake: FakeS3, bucket: S3Blobs, behaviour: str, text: str
) -> None:
    key = payload_key(new_id())
    bucket.put(key, b"x" * 1000)
    fake.behave(behaviour)
    with pytest.raises(BlobError, match=text) as refused:
        bucket.get(key)
    assert not isinstance(refused.value, BlobMissing)
    assert f"read {key} in s3://{BUCKET}" in str(refused.value)
    assert len(fake.requests) <= 1 + 3


def test_a_put_that_keeps_failing_is_an_error_and_stores_nothing(
    fake: FakeS3, bucket: S3Blobs
) -> None:
    fake.behave("slow_down")
    with pytest.raises(BlobError, match="SlowDown"):
        bucket.put(payload_key(new_id()), b"x" * 100_000)
    assert fake.objects == {}


def test_a_proxy_that_answers_everything_with_its_page_is_not_taken_for_the_store(
    fake: FakeS3, bucket: S3Blobs
) -> None:
    key = payload_key(new_id())
    bucket.put(key, b"x")
    fake.behave("html")
    acts = [
        lambda: bucket.put(key, b"y"),
        lambda: bucket.get(key),
        lambda: list(keys_in(bucket, 0)),
    ]
    for act in acts:
        with pytest.raises(BlobError, match="is no S3") as refused:
            act()
        assert not isinstance(refused.value, BlobMissing)


def test_a_silent_server_is_an_error_in_bounded_time(
    fake: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.blobs.s3.READ_SECONDS", 0.2)
    fake.behave("hang")
    assert "timeout" in refusal_of(fake.url("p"))
    assert len(fake.requests) == 3


def test_no_server_no_bucket_and_wrong_credentials_are_errors_not_missing_blobs(
    fake: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {
        "NoSuchBucket": fake.url("p").replace(BUCKET, "other-bucket"),
        "Could not connect": f"s3://{BUCKET}/p?endpoint=http://127.0.0.1:9",
    }
    for text, url in wrong.items():
        assert text in refusal_of(url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "SignatureDoesNotMatch" in refusal_of(fake.url("p"))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "credentials" in refusal_of(fake.url("p"))


def refusal_of(url: str) -> str:
    store = open_blobs(url)
    assert isinstance(store, S3Blobs)
    with pytest.raises(BlobError) as refused:
        store.get(payload_key(new_id()))
    store.close()
    assert not isinstance(refused.value, BlobMissing)
    return str(refused.value)


PATCHED = """
from gevent import monkey
monkey.patch_all()
import json, sys, time
import gevent
from models.blobs import BlobError, open_blobs, payload_key, s3
from models.jobs.ids import new_id

s3.READ_SECONDS = float(sys.argv[2])
store = open_blobs(sys.argv[1])
ticks = 0

def tick():
    global ticks
    while True:
        gevent.sleep(0.01)
        ticks += 1

def use(n):
    key, data = payload_key(new_id()), bytes([n]) * 200_000
    try:
        store.put(key, data)
        return "whole" if store.get(key) == data else "broken"
    except BlobError:
        return "refused"

store._client()
began = time.monotonic()
ticker = gevent.spawn(tick)
users = [gevent.spawn(use, n) for n in range(20)]
gevent.joinall(users, raise_error=True)
print(json.dumps({
    "outcomes": sorted({user.value for user in users}),
    "seconds": time.monotonic() - began,
    "ticks": ticks,
}))
"""


def run(script: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_under_gevent_twenty_callers_wait_side_by_side(fake: FakeS3) -> None:
    fake.answer_seconds = 0.5
    seen = run(PATCHED, fake.url("p"), "10")
    assert seen["outcomes"] == ["whole"]
    assert 1.0 <= seen["seconds"] < 10
    assert seen["ticks"] > 30


def test_under_gevent_a_silent_server_stops_nobody_else(fake: FakeS3) -> None:
    fake.behave("hang")
    seen = run(PATCHED, fake.url("p"), "0.8")
    assert seen["outcomes"] == ["refused"]
    assert seen["seconds"] < 15
    assert seen["ticks"] > 100


FORKED = """
import os, sys
from models.blobs import open_blobs, payload_key
from models.jobs.ids import new_id

store, key = open_blobs(sys.argv[1]), payload_key(new_id())
store.put(key, b"before")
if (child := os.fork()) == 0:
    os._exit(0 if store.get(key) == b"before" else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert store.get(key) == b"before"
print(code)
"""


def test_a_fork_gets_connections_of_its_own(fake: FakeS3) -> None:
    assert run(FORKED, fake.url("p")) == 0
    assert len(fake.connections) == 2
