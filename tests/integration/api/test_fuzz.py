"""Any JSON as a body: accepted and stored as sent, or rejected with a problem."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loadtest.attack.corpus.bodies import GOOD
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture

#: Every code point that UTF-8 can carry, NUL among them.
texts = st.text(st.characters(codec="utf-8"), max_size=40)
numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**320), max_value=10**320),
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)
#: How a client may spell the same document.
spellings = st.sampled_from(
    [
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, indent=2, separators=(" , ", "\t:\n")),
    ]
)
fuzzed = settings(
    max_examples=150,
    database=None,
    # One server serves all examples, as it serves all callers.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Spelling = Callable[[Any], str]
Send = Callable[..., tuple[int, dict[str, Any]]]

#: Every door that takes a body, with what a reply holds if it was let in.
REPLIES = {
    "/applications": {"id", "status"},
    "/jobs": {"id", "status"},
    "/jobs/batch": {"accepted", "rejected", "results"},
    "/dead-letters/replay": {"replayed", "skipped", "ids"},
}
paths = st.sampled_from(list(REPLIES))


@pytest.fixture
def send(api: ApiServer) -> Iterator[Send]:
    """Posts bodies on one keep-alive connection and checks the form of the answers."""
    connection = HTTPConnection("127.0.0.1", api.port, timeout=20)

    def post(body: bytes, path: str = "/applications") -> tuple[int, dict[str, Any]]:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status in (200, 202):
            assert set(answer) == REPLIES[path]
        else:
            assert 400 <= response.status < 500, (body, answer)
            assert response.headers["Content-Type"] == "application/problem+json"
            assert {"type", "title", "status", "code", "detail"} <= set(answer)
        return response.status, answer

    yield post
    connection.close()


def holds_nul(value: Any) -> bool:
    match value:
        case str():
            return "\x00" in value
        case dict():
            return any(holds_nul(key) or holds_nul(inner) for key, inner in value.items())
        case list():
            return any(map(holds_nul, value))
    return False


def is_beyond_a_double(value: Any) -> bool:
    match value:
        case int():
            return abs(value) >= 2**1023  # about; what lies near the border may go either way
        case dict():
            return any(map(is_beyond_a_double, value.values()))
        case list():
            return any(map(is_beyond_a_double, value))
    return False


@fuzzed
@given(payload=st.dictionaries(texts, values, max_size=5), spell=spellings)
@example(payload={"\\u0000": "\\\\u0000"}, spell=json.dumps)
@example(payload={"": {"": [[]]}, "e": 1e5, "i": 10**22, "f": 1e22, "z": -0.0}, spell=json.dumps)
def test_any_payload_is_kept_as_sent_or_refused(
    send: Send, api_database: DatabaseFixture, payload: dict[str, Any], spell: Spelling
) -> None:
    status, answer = send(spell({**GOOD, "payload": payload}).encode())
    if status == 202:
        stored = api_database.job(answer["id"]).payload["payload"]
        assert repr(stored) == repr(payload)
        assert not holds_nul(payload)
    else:
        assert holds_nul(payload) or is_beyond_a_double(payload), (payload, answer)


def trimmed(text: str) -> str:
    """Without what Unicode calls white space; Python counts four separators more."""
    return text.strip(
        "".join(c for c in map(chr, range(0x3001)) if c.isspace() and c not in "\x1c\x1d\x1e\x1f")
    )


@fuzzed
@given(payload=values, spell=spellings, priority=st.integers(-101, 101))
def test_any_payload_of_a_job_is_kept_as_sent_or_refused_alone(
    send: Send, api_database: DatabaseFixture, payload: Any, spell: Spelling, priority: int
) -> None:
    job = {"type": "echo", "payload": payload, "priority": priority}
    good = {"type": "echo"}
    status, answer = send(spell({"jobs": [good, job, good]}).encode(), "/jobs/batch")
    if status != 202:
        assert is_beyond_a_double(payload), (payload, answer)  # no JSON that all parsers read
        return
    first, result, last = answer["results"]
    assert {*first} == {*last} == {"id", "status"}
    if "id" in result:
        (row,) = api_database.query("SELECT payload::text FROM jobs WHERE id = %s", result["id"])
        assert repr(json.loads(row[0])) == repr(payload)
        assert not holds_nul(payload) and abs(priority) <= 100
    else:
        assert holds_nul(payload) or abs(priority) > 100, (payload, result)


@fuzzed
@given(body=values, path=paths)
def test_any_json_is_answered(send: Send, body: Any, path: str) -> None:
    status, _ = send(json.dumps(body).encode(), path)
    assert status not in (200, 202)  # hardly: it would have to be what the door asks for


@fuzzed
@given(
    fields=st.dictionaries(
        st.sampled_from(["candidate", "payload", "role", "priority", "execute_at", "not_after"])
        | texts,
        values | st.datetimes().map(str) | st.datetimes().map(lambda t: f"{t.isoformat()}Z"),
        max_size=4,
    )
)
def test_any_field_of_any_type_is_answered_and_what_is_taken_can_be_read(
    send: Send, api: ApiServer, api_database: DatabaseFixture, fields: dict[str, Any]
) -> None:
    sent = {**GOOD, **fields}
    status, answer = send(json.dumps(sent).encode())
    if status == 202:
        shown = api.get(f"/applications/{answer['id']}").json()
        assert shown["candidate"] == trimmed(sent["candidate"])
        assert shown["role"] == trimmed(sent.get("role", "general"))
        assert shown["priority"] == sent.get("priority", 0)
        assert api_database.job(answer["id"]).payload["payload"] == sent["payload"]


@fuzzed
@given(body=st.binary(max_size=200), path=paths)
def test_any_bytes_are_refused(send: Send, body: bytes, path: str) -> None:
    assert send(body, path)[0] in (400, 422)


@fuzzed
@given(data=st.data(), path=paths)
def test_submission_with_any_bytes_changed_is_answered(
    send: Send, data: st.DataObject, path: str
) -> None:
    good = {
        "/applications": {**GOOD, "role": "a", "priority": 1},
        "/jobs": {"type": "echo", "payload": [1], "jitter": False},
        "/jobs/batch": {"jobs": [{"type": "count", "payload": {"to": 1}}, {"type": "echo"}]},
        "/dead-letters/replay": {"filter": {"type": "echo", "error_class": "TIMEOUT"}, "limit": 9},
    }
    body = bytearray(json.dumps(good[path]).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    send(bytes(body), path)
