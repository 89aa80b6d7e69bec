"""Keys name their kind and job; URLs name their store; neither is taken from a stranger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.blobs import checkpoint_key, job_of, open_blobs, payload_key
from models.blobs.directory import DirectoryBlobs
from models.blobs.keys import is_key
from models.blobs.s3 import S3Blobs

ID = "0190a5b2-1c3d-7e4f-8a5b-6c7d8e9f0a1b"
numbers = st.integers(min_value=0, max_value=2**31 - 1)


def test_keys_look_like_this() -> None:
    assert payload_key(ID) == f"payloads/1b/{ID}"
    assert payload_key(ID.upper()) == f"payloads/1b/{ID}"
    assert re.fullmatch(rf"checkpoints/1b/{ID}\.3\.12\.[0-9a-f]{{8}}", checkpoint_key(ID, 3, 12))


@given(st.uuids(), numbers, numbers)
def test_a_key_leads_back_to_its_job(job: uuid.UUID, lease: int, number: int) -> None:
    for key in (payload_key(str(job)), checkpoint_key(str(job), lease, number)):
        assert job_of(key) == str(job)
        assert is_key(key)


def test_key_of_the_previous_version_leads_back_to_its_job() -> None:
    assert job_of(f"checkpoints/1b/{ID}.3.12") == ID


@given(st.uuids(), numbers, numbers)
def test_two_runs_with_the_same_lease_do_not_share_a_key(
    job: uuid.UUID, lease: int, number: int
) -> None:
    assert checkpoint_key(str(job), lease, number) != checkpoint_key(str(job), lease, number)


@pytest.mark.parametrize(
    "key",
    [
        "", ID, f"payloads/{ID}", f"payloads/00/{ID}", f"payloads/1b/{ID}.tmp",
        f"/payloads/1b/{ID}", f"payloads/1b/{ID.upper()}", f"payloads/1b/{ID}\n",
        f"payloads/1b/{ID}.3.12",
        f"checkpoints/1b/{ID}", f"checkpoints/1b/{ID}.3", f"checkpoints/1b/{ID}.03.12",
        f"checkpoints/1b/{ID}.3.-1", f"checkpoints/1b/{ID}.3.٣", f"results/1b/{ID}",
        f"checkpoints/1b/{ID}.3.12.", f"checkpoints/1b/{ID}.3.12.xyz",
        f"payloads/1b/x{ID}",
    ],
)  # fmt: skip
def test_what_is_no_key_of_ours_has_no_job(key: str) -> None:
    assert job_of(key) is None


@given(st.text())
def test_no_text_breaks_the_parser_of_keys(text: str) -> None:
    assert job_of(text) is None
    assert not is_key(text) or not (text.startswith("/") or ".." in text or "\0" in text)


def test_a_key_needs_the_id_of_a_job() -> None:
    for wrong in ("", "1", "../../etc/passwd", "x" * 36):
        with pytest.raises(ValueError, match="not the id"):
            payload_key(wrong)
        with pytest.raises(ValueError, match="not the id"):
            checkpoint_key(wrong, 1, 1)
    with pytest.raises(ValueError, match="-1"):
        checkpoint_key(ID, -1, 0)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("/var/blobs", "/var/blobs"),
        ("file:///var/blobs/", "/var/blobs"),
        ("file://localhost/var/my%20blobs", "/var/my blobs"),
        (".run/blobs", os.path.abspath(".run/blobs")),
    ],
)
def test_a_path_or_file_url_is_a_folder(url: str, root: str) -> None:
    store = open_blobs(url)
    assert isinstance(store, DirectoryBlobs)
    assert store.root == root


def test_an_s3_url_is_a_bucket() -> None:
    plain = open_blobs("s3://bucket")
    assert isinstance(plain, S3Blobs)
    assert (plain.bucket, plain.prefix, plain.endpoint, plain.region) == ("bucket", "", None, None)
    full = open_blobs("s3://bucket/a/b/?endpoint=http://127.0.0.1:9000&region=eu-west-1")
    assert isinstance(full, S3Blobs)
    assert (full.prefix, full.endpoint, full.region) == (
        "a/b/",
        "http://127.0.0.1:9000",
        "eu-west-1",
    )


@pytest.mark.parametrize(
    "url",
    [
        "", " ", "http://host/secret", "file://host/secret", "file:relative://secret",
        "file:///x?secret=1", "s3://", "s3:///secret", "s3://me:secret@bucket/x", "s3://b",
        "s3://bucket/../secret", "s3://bucket/a//secret", "s3://bucket/se%20cret",
        "s3://bucket?secret=1", "s3://bucket?secret", "s3://bucket/x#secret",
        "s3://bucket?endpoint=", "s3://bucket?endpoint=secret", "s3://bucket?endpoint=ftp://secret",
        "s3://bucket?endpoint=http://me:secret@host", "s3://bucket?endpoint=http://host?secret",
        "s3://bucket?endpoint=http://host:99999",
    ],
)  # fmt: skip
def test_any_other_url_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        open_blobs(url)
    assert "secret" not in str(refused.value)


def test_credentials_in_a_url_are_refused_with_a_hint_where_they_belong() -> None:
    with pytest.raises(ValueError, match=r"AWS_\*"):
        open_blobs("s3://me:secret@bucket/x")


def test_opening_a_store_imports_no_sdk() -> None:
    code = (
        "import sys; from models.blobs import open_blobs\n"
        "open_blobs('/nowhere'); open_blobs('s3://bucket/x?endpoint=http://127.0.0.1:9')\n"
        "wrong = {'boto3', 'botocore', 'gevent', 'ssl'} & set(sys.modules)\n"
        "assert not wrong, wrong"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
