"""Hostile input: a clear 4xx for each, never a 500, and memory that stays where it was."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import time
from typing import Any

import pytest

from loadtest.attack.corpus import bodies as hostile
from loadtest.attack.corpus.bodies import (
    FINE,
    ID,
    MALFORMED,
    UNFIT_BY_PATH,
)
from loadtest.attack.corpus.framing import MISFRAMED, NOT_HTTP, POST_HEAD
from models.blobs import open_blobs
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import (
    MEGABYTE,
    STATUS_LINE,
    Answer,
    ApiServer,
    parse_raw,
    read_all,
)
from tests.support.database_fixture import DatabaseFixture

GOOD = hostile.body()
#: Memory of both workers may grow by this much over a thousand requests.
FLAT_MEGABYTES = 8.0


def stored_payload(api: ApiServer, database: DatabaseFixture, job_id: str) -> Any:
    """The payload as the worker reads it."""
    row = database.job(job_id)
    if row.payload_blob is None:
        return row.payload
    assert row.payload is None
    return json.loads(open_blobs(str(api.blobs)).get(row.payload_blob))


def assert_refused(answer: Answer) -> None:
    """Some 4xx, as a problem document."""
    assert 400 <= answer.status < 500, answer
    body = assert_problem(answer, answer.status, answer.json()["code"])
    assert body["code"] == body["code"].upper()


@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_body_is_refused(api: ApiServer, name: str) -> None:
    for path in UNFIT_BY_PATH:
        assert_problem(api.post(MALFORMED[name], path=path), 400, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, unfit in UNFIT_BY_PATH.items() for name in unfit]
)
def test_unfit_body_is_refused_with_the_field_that_is_wrong(
    api: ApiServer, path: str, name: str
) -> None:
    sent, field = UNFIT_BY_PATH[path][name]
    answer = api.post(sent, path=path)
    found = assert_problem(answer, 422, "VALIDATION_FAILED")["errors"]
    assert field in [error["field"] for error in found]
    assert all(error["message"] for error in found)
    assert len(found) <= 20
    assert len(answer.body) < 10_000


@pytest.mark.parametrize("name", list(FINE))
def test_strange_but_correct_body_is_stored_as_sent(
    api: ApiServer, api_database: DatabaseFixture, name: str
) -> None:
    answer = api.post(FINE[name])
    assert answer.status == 202, answer
    stored = stored_payload(api, api_database, answer.json()["id"])
    # As text: 1 and 1.0 are equal, and so are two objects with their keys in another order.
    assert repr(stored["payload"]) == repr(json.loads(FINE[name])["payload"])
    assert api.get(answer.headers["location"]).json()["candidate"] == stored["candidate"]
    if len(FINE[name]) > MEGABYTE - 100:
        return
    for path, head, tail in (
        ("/jobs", b'{"type":"echo","payload":', b"}"),
        ("/jobs/batch", b'{"jobs":[{"type":"echo","payload":', b"}]}"),
    ):
        document = api.post(head + FINE[name] + tail, path=path).json()
        job_id = document["id"] if path == "/jobs" else document["results"][0]["id"]
        stored = stored_payload(api, api_database, job_id)
        assert repr(stored) == repr(json.loads(FINE[name]))


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "APPLICATION/JSON",
        'application/json; charset="utf-8"; x=y',
    ],
)
def test_every_spelling_of_json_is_taken(api: ApiServer, content_type: str) -> None:
    assert api.post(GOOD, content_type).status == 202


@pytest.mark.parametrize(
    "content_type",
    [
        *(None, "", "text/plain", "json", "application/jsonp", "application/json, text/html"),
        *("multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ";;;"),
        "a" * 5000,
    ],
)
def test_other_content_types_are_not(api: ApiServer, content_type: str | None) -> None:
    assert_problem(api.post(GOOD, content_type), 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate", "gzip, identity"])
def test_encoded_body_is_refused_in_words(api: ApiServer, encoding: str) -> None:
    answer = api.post(gzip.compress(GOOD), headers={"Content-Encoding": encoding})
    assert "Content-Encoding" in assert_problem(answer, 415, "UNSUPPORTED_MEDIA_TYPE")["detail"]


def test_identity_is_no_encoding(api: ApiServer) -> None:
    assert api.post(GOOD, headers={"Content-Encoding": "identity"}).status == 202


def test_10_megabytes_are_too_many(api: ApiServer) -> None:
    sent = hostile.body(payload={"x": "x" * 10 * MEGABYTE})
    answer = api.post(sent)
    assert "1,048,576" in assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")["detail"]


def test_10_megabytes_in_chunks_are_too_many(api: ApiServer) -> None:
    answer = api.request(
        "POST", "/applications", hostile.chunked(160), {"Content-Type": "application/json"}
    )
    assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")


def test_size_is_limited_to_the_byte(api: ApiServer) -> None:
    frame = len(hostile.body(payload={"x": ""}))
    assert api.post(hostile.body(payload={"x": "x" * (MEGABYTE - frame)})).status == 202
    answer = api.post(hostile.body(payload={"x": "x" * (MEGABYTE - frame + 1)}))
    assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize("framing", [b"Content-Length: 200", b"Transfer-Encoding: chunked"])
def test_body_that_drips_is_given_up_in_time(api: ApiServer, framing: bytes) -> None:
    began = time.monotonic()
    with api.connect() as wire:
        wire.sendall(POST_HEAD + framing + b"\r\n\r\n")
        wire.settimeout(0.2)
        received = b""
        while not received and time.monotonic() < began + 10:
            wire.sendall(b"1\r\n \r\n" if b"chunked" in framing else b" ")
            try:
                received = wire.recv(65_536)
            except TimeoutError:
                continue
        wire.settimeout(5)
        received += read_all(wire)  # and the connection is closed: its framing is lost
    assert received.count(STATUS_LINE) == 1
    assert_problem(parse_raw(received), 408, "REQUEST_TIMEOUT")
    assert time.monotonic() - began < 9


def test_dripping_bodies_hold_nobody_up(api: ApiServer) -> None:
    took: list[float] = []
    while len(took) < 3 and min(took, default=9.0) >= 1:  # a busy machine may be slow by itself
        wires = [api.connect() for _ in range(200)]
        for wire in wires:
            wire.sendall(POST_HEAD + b"Content-Length: 200\r\n\r\n{")
        took.append(api.post(GOOD).seconds)
        for wire in wires:
            assert_problem(parse_raw(read_all(wire)), 408, "REQUEST_TIMEOUT")
            wire.close()
    assert min(took) < 1


@pytest.mark.parametrize("sent", MISFRAMED)
def test_body_that_is_not_as_announced_is_refused(api: ApiServer, sent: bytes) -> None:
    assert_problem(parse_raw(api.exchange(POST_HEAD + sent)), 400, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    ("sent", "status"),
    NOT_HTTP,
    ids=lambda value: repr(value[-40:]) if isinstance(value, bytes) else None,
)
def test_what_is_no_http_is_a_problem_document_too(
    api: ApiServer, sent: bytes, status: int
) -> None:
    answer = parse_raw(api.exchange(sent))
    assert answer.status == status
    assert_refused(answer)


def test_client_that_leaves_in_the_middle_is_forgotten(api: ApiServer) -> None:
    for sent in (b"", b"PO", POST_HEAD, POST_HEAD + b"Content-Length: 100\r\n\r\n{"):
        with api.connect() as wire:
            wire.sendall(sent)
            # Linger zero: the connection ends with a reset.
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert api.post(GOOD).status == 202


def test_pipelined_requests_are_answered_in_order(api: ApiServer) -> None:
    bad = b"[]"
    one = POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    two = POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(bad) + bad
    get = b"GET /applications/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
    received = api.exchange(one + two + get + one)
    codes = [part[:3] for part in received.split(STATUS_LINE)[1:]]
    assert codes == [b"202", b"422", b"404", b"202"]


def test_body_of_a_refused_request_is_not_read_as_the_next_one(api: ApiServer) -> None:
    smuggled = b"GET /leaderboard HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = POST_HEAD.replace(b"application/json", b"text/plain")
    received = api.exchange(head + b"Content-Length: %d\r\n\r\n" % len(smuggled) + smuggled)
    assert [part[:3] for part in received.split(STATUS_LINE)[1:]] == [b"415"]


@pytest.mark.parametrize(
    "text",
    [
        *("x", "%00", "..", "%2e%2e%2f", "0", "-1", "null", "%ff%fe", "%F0%9F%98%80", "'--"),
        *("0" * 36, "g" * 36, "-" * 36, ID[:-1], ID + "0", ID + "%00"),
        *(ID.replace("-", ""), "%7B" + ID + "%7D", "urn:uuid:" + ID),
        *("%D9%A3" * 36, "_".join("1" * 18), "a" * 3000),
        *("ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"),
    ],
)
def test_what_is_no_id_is_not_found(api: ApiServer, text: str) -> None:
    for path in (f"/applications/{text}", f"/jobs/{text}"):
        assert_problem(api.get(path), 404, "NOT_FOUND")
        assert_problem(api.request("DELETE", path), 404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/dead-letters/replay"])
def test_no_door_takes_10_megabytes_or_another_content_type(api: ApiServer, path: str) -> None:
    large = hostile.body(payload={"x": "x" * 10 * MEGABYTE})
    assert_problem(api.post(large, path=path), 413, "PAYLOAD_TOO_LARGE")
    assert_problem(api.post(b"{}", "text/plain", path=path), 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("path", ["/applications", "/jobs", "/jobs/batch"])
@pytest.mark.parametrize("key", ["", " ", "\t", "é", "k" * 256, "k" * 5000])
def test_key_that_is_none_is_refused(api: ApiServer, path: str, key: str) -> None:
    sent = b'{"jobs":[%b]}' % hostile.job() if path == "/jobs/batch" else hostile.job()
    sent = GOOD if path == "/applications" else sent
    answer = api.post(sent, headers={"Idempotency-Key": key}, path=path)
    found = assert_problem(answer, 422, "VALIDATION_FAILED")["errors"]
    assert [error["field"] for error in found] == ["Idempotency-Key"]


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", "%00", "====", "ab=c", "%FF", "%F0%9F%98%80", "a" * 3000, "..", "-1", "A", "__"),
        *map(
            packed,
            [
                *("", "|||", "1|2|3|4", f"50.00|{ID}|1", f"50.00|{ID}|1|1|1", f"50.00|{ID}|1|1\n"),
                *(f"NaN|{ID}|1|1", f"Infinity|{ID}|1|1", f"1E-999999|{ID}|1|1", f"1e2|{ID}|1|1"),
                *(f"٥٠.٠٠|{ID}|1|1", f"1_0.00|{ID}|1|1", f"-1.00|{ID}|1|1"),
                f"{'9' * 900}|{ID}|1|1",
                *(f"50.00|{ID}|0|1", f"50.00|{ID}|2|1", f"50.00|{ID}|-1|1", f"50.00|{ID}|x|1"),
                *(f"50.00|{ID}|1|{'9' * 900}", f"50.00|{'-' * 36}|1|1", "50.00|x|1|1"),
                *(f"50.00|{ID}'|1|1", f"50.00|\x00{ID[1:]}|1|1"),
            ],
        ),
    ],
)
def test_cursor_not_given_out_is_refused(api: ApiServer, cursor: str) -> None:
    found = assert_problem(api.get(f"/leaderboard?cursor={cursor}"), 422, "VALIDATION_FAILED")
    assert [error["field"] for error in found["errors"]] == ["cursor"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *((f"limit={text}", "limit") for text in ("0", "-1", "501", "abc", "1e2", "1.0", "", "+1")),
        *((f"limit={text}", "limit") for text in ("1000000000", "%D9%A3", "%C2%B2", "0x10", "1_0")),
        *((f"limit={text}", "limit") for text in ("000000001" + "9" * 30, "9" * 3000, "%00")),
        *((f"role={text}", "role") for text in ("", "%00", "a%00b", "%20%20", "x" * 201)),
        *((f"{text}=1", text) for text in ("offset", "tenant", "ROLE")),
    ],
)
def test_query_of_the_leaderboard_is_checked(api: ApiServer, query: str, field: str) -> None:
    found = assert_problem(api.get(f"/leaderboard?{query}"), 422, "VALIDATION_FAILED")
    assert [error["field"] for error in found["errors"]] == [field]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *((f"/jobs?limit={text}", "limit") for text in ("0", "501", "1e2", "%D9%A3", "9" * 3000)),
        *((f"/jobs?status={text}", "status") for text in ("", "nope", "DEAD", "%00", "dead,dead")),
        *((f"/jobs?type={text}", "type") for text in ("", "%00", "a%20b", "x" * 101, "%FF")),
        *((f"/jobs?pool={text}", "pool") for text in ("", "%00", "'--", "%F0%9F%98%80")),
        *((f"/jobs?{text}=1", text) for text in ("offset", "tenant", "STATUS", "error_class")),
        *((f"/dead-letters?{text}=1", text) for text in ("status", "pool", "before")),
        *((f"/dead-letters?limit={text}", "limit") for text in ("0", "201", "x")),
        *((f"/dead-letters?error_class={text}", "error_class") for text in ("", "BAD", "timeout")),
        *((f"/tenant/usage?from={text}", "from") for text in ("", "x", "2030-13-01", "%00")),
        *((f"/tenant/usage?from={text}", "from") for text in ("2026-1-1", "20260101", "%D9%A3")),
        *((f"/tenant/usage?to={text}", "to") for text in ("2030-02-30", "0000-01-01", "now")),
        ("/tenant/usage?from=2026-02-01&to=2026-01-31", "from"),
        ("/tenant/usage?from=0001-01-01&to=9999-12-31", "from"),
        ("/tenant/usage?day=2026-01-01", "day"),
        *(
            (f"/{page}?cursor={cursor}", "cursor")
            for page in ("jobs", "dead-letters")
            for cursor in (
                *("", "x", "%00", "====", "%FF", "a" * 3000, packed(""), packed("x")),
                *(packed(f"{ID}\n"), packed(f"{ID}|{ID}"), packed(f"\x00{ID[1:]}"), ID),
            )
        ),
    ],
)
def test_query_of_a_page_is_checked(api: ApiServer, path: str, field: str) -> None:
    found = assert_problem(api.get(path), 422, "VALIDATION_FAILED")
    assert [error["field"] for error in found["errors"]] == [field]


@pytest.mark.parametrize("query", ["role=%FF%FE", "role=%ED%A0%80", "&&&", "role=a&role=b", "?"])
def test_odd_query_is_no_server_error(api: ApiServer, query: str) -> None:
    assert api.get(f"/leaderboard?{query}").status in (200, 422)


def test_thousand_hostile_requests_leave_the_server_as_it_was(api: ApiServer) -> None:
    bodies = [*MALFORMED.values(), b"x" * (2 * MEGABYTE)]
    bodies += [b"\xff" * size for size in (1, 1000, MEGABYTE)]
    attacks = [("/applications", sent) for sent in bodies]
    attacks += [(path, sent) for path, unfit in UNFIT_BY_PATH.items() for sent, _ in unfit.values()]

    def attack(times: int) -> None:
        for number in range(times):
            path, sent = attacks[number % len(attacks)]
            assert_refused(api.post(sent, path=path))

    # Which worker gets a connection is chance; by now each has seen most of the bodies.
    attack(6 * len(attacks))
    workers, before = [worker.pid for worker in api.workers()], api.resident_megabytes()
    attack(1000)
    assert [worker.pid for worker in api.workers()] == workers
    assert api.resident_megabytes() - before < FLAT_MEGABYTES
    assert api.post(GOOD).status == 202
    assert b"Traceback" not in api.log.read_bytes()
