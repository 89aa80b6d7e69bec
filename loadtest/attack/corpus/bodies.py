"""Bodies nobody should send, each with the answer it deserves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MEGABYTE = 1_048_576
#: A submission that is in order, to be spoiled in one place.
GOOD: dict[str, Any] = {"candidate": "Ada", "payload": {"years": 12}}


def body(**fields: Any) -> bytes:
    """A submission with some fields changed; ``...`` leaves one out."""
    changed = {name: value for name, value in {**GOOD, **fields}.items() if value is not ...}
    return json.dumps(changed).encode()


def payload(text: bytes) -> bytes:
    """A submission whose payload holds this piece of would-be JSON."""
    return b'{"candidate":"Ada","payload":{"x":%b}}' % text


#: 400: not JSON at all, or no JSON that one parser reads as another does.
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "spaces": b"  \n",
    "half": b'{"candidate":"Ada","payl',
    "two documents": body() + body(),
    "trailing comma": b'{"candidate":"Ada","payload":{},}',
    "comment": b'{"candidate":"Ada"/**/,"payload":{}}',
    "single quotes": b"{'candidate':'Ada','payload':{}}",
    "byte order mark": b"\xef\xbb\xbf" + body(),
    "utf-16": body().decode().encode("utf-16"),
    "bad utf-8": payload(b'"\xff\xfe"'),
    "overlong utf-8": payload(b'"\xc0\xaf"'),
    "utf-8 surrogate": payload(b'"\xed\xa0\x80"'),
    "truncated utf-8": payload(b'"\xe2\x82"'),
    "raw NUL": payload(b'"a\x00b"'),
    "raw newline in a string": payload(b'"a\nb"'),
    "lone high surrogate": payload(rb'"\ud800"'),
    "lone low surrogate": payload(rb'"\udc00"'),
    "reversed surrogates": payload(rb'"\ude00\ud83d"'),
    "surrogate in a key": b'{"candidate":"Ada","payload":{"\\ud800":1}}',
    "NaN": payload(b"NaN"),
    "Infinity": payload(b"Infinity"),
    "-Infinity": payload(b"-Infinity"),
    "1e999": payload(b"1e999"),
    "-1e999": payload(b"-1e999"),
    "integer of 4,301 digits": payload(b"9" * 4301),
    "integer of 100,000 digits": payload(b"9" * 100_000),
    "leading zero": payload(b"01"),
    "leading plus": payload(b"+1"),
    "hexadecimal": payload(b"0x1"),
    "bare point": payload(b".5"),
    "depth 10,000": payload(b"[" * 10_000 + b"]" * 10_000),
    "depth 10,000 of objects": payload(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "open depth 500,000": payload(b"[" * 500_000),
    "gzip without saying so": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00",
    "form": b"candidate=Ada&payload=%7B%7D",
    "xml": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
    "bytes": bytes(range(256)) * 16,
}

#: 422: JSON, but not a submission; with the field that is wrong.
UNFIT: dict[str, tuple[bytes, str]] = {
    "null": (b"null", "(body)"),
    "number": (b"1", "(body)"),
    "string": (b'"Ada"', "(body)"),
    "array": (b"[]", "(body)"),
    "array of one": (b"[" + body() + b"]", "(body)"),
    "empty object": (b"{}", "candidate"),
    "depth 300": (payload(b"[" * 300 + b"]" * 300), "(body)"),
    "no candidate": (body(candidate=...), "candidate"),
    "candidate null": (body(candidate=None), "candidate"),
    "candidate number": (body(candidate=1), "candidate"),
    "candidate list": (body(candidate=["Ada"]), "candidate"),
    "candidate empty": (body(candidate=""), "candidate"),
    "candidate blank": (body(candidate=" \t\n\u00a0\u2003"), "candidate"),
    "candidate of 201 characters": (body(candidate="x" * 201), "candidate"),
    "candidate of a megabyte": (body(candidate="x" * (MEGABYTE - 100)), "candidate"),
    "candidate with NUL": (body(candidate="A\x00"), "candidate"),
    "no payload": (body(payload=...), "payload"),
    "payload null": (body(payload=None), "payload"),
    "payload list": (body(payload=[]), "payload"),
    "NUL in a text": (body(payload="x\x00"), "payload"),
    "payload number": (body(payload=0), "payload"),
    "NUL in the payload": (body(payload={"a": [1, {"b": "x\x00"}]}), "payload.a.1.b"),
    "NUL in a key": (body(payload={"a": {"\x00": 1}}), "payload.a"),
    "NUL beside its literal": (payload(rb'"\\u0000\u0000"'), "payload.x"),
    "role empty": (body(role=""), "role"),
    "role of 201 characters": (body(role="é" * 201), "role"),
    "role null": (body(role=None), "role"),
    "role number": (body(role=3), "role"),
    "priority 101": (body(priority=101), "priority"),
    "priority -101": (body(priority=-101), "priority"),
    "priority beyond 64 bits": (body(priority=2**80), "priority"),
    "priority true": (body(priority=True), "priority"),
    "priority 1.0": (body(priority=1.0), "priority"),
    "priority 1.5": (body(priority=1.5), "priority"),
    "priority text": (body(priority="1"), "priority"),
    "priority null": (body(priority=None), "priority"),
    "execute_at without a zone": (body(execute_at="2030-01-01T00:00:00"), "execute_at"),
    "execute_at a day": (body(execute_at="2030-01-01"), "execute_at"),
    "execute_at an epoch": (body(execute_at=1_900_000_000), "execute_at"),
    "execute_at an epoch as text": (body(execute_at="1900000000"), "execute_at"),
    "execute_at true": (body(execute_at=True), "execute_at"),
    "execute_at empty": (body(execute_at=""), "execute_at"),
    "execute_at year 0": (body(execute_at="0000-01-01T00:00:00Z"), "execute_at"),
    "execute_at year 1": (body(execute_at="0001-01-01T00:00:00Z"), "execute_at"),
    "execute_at before Christ": (body(execute_at="0001-01-01T00:00:00+14:00"), "execute_at"),
    "execute_at year 9999": (body(execute_at="9999-12-31T23:59:59Z"), "execute_at"),
    "execute_at year 10000": (body(execute_at="9999-12-31T23:59:59-14:00"), "execute_at"),
    "execute_at year 99999": (body(execute_at="99999-01-01T00:00:00Z"), "execute_at"),
    "execute_at leap second": (body(execute_at="2016-12-31T23:59:60Z"), "execute_at"),
    "execute_at 30 February": (body(execute_at="2030-02-30T00:00:00Z"), "execute_at"),
    "execute_at zone +99:99": (body(execute_at="2030-01-01T00:00:00+99:99"), "execute_at"),
    "execute_at Arabic digits": (body(execute_at="٢٠٣٠-٠١-٠١T٠٠:٠٠:٠٠Z"), "execute_at"),
    "not_after word": (body(not_after="tomorrow"), "not_after"),
    "not_after before execute_at": (
        body(execute_at="2030-01-02T00:00:00Z", not_after="2030-01-02T00:59:59+01:00"),
        "not_after",
    ),
    "unknown field": (body(tenant="other"), "tenant"),
    "unknown field of a megabyte": (body(**{"k" * 1_000_000: 1}), "k" * 200 + "…"),
    "field in capitals": (body(Candidate="Ada"), "Candidate"),
    "100,000 unknown fields": (body(**{f"f{n}": 0 for n in range(75_000)}), "f0"),
}

#: A job that is in order.
JOB: dict[str, Any] = {"type": "echo", "payload": {"years": 12}}


def job(**fields: Any) -> bytes:
    """A job with some fields changed; ``...`` leaves one out."""
    changed = {name: value for name, value in {**JOB, **fields}.items() if value is not ...}
    return json.dumps(changed).encode()


#: 422 at ``/jobs``, and for an item of a batch; with the field that is wrong.
UNFIT_JOBS: dict[str, tuple[bytes, str]] = {
    "null": (b"null", "(body)"),
    "number": (b"1", "(body)"),
    "array": (b"[]", "(body)"),
    "empty object": (b"{}", "type"),
    "type null": (job(type=None), "type"),
    "type number": (job(type=1), "type"),
    "type list": (job(type=["echo"]), "type"),
    "type empty": (job(type=""), "type"),
    "type unknown": (job(type="nope"), "type"),
    "type in capitals": (job(type="ECHO"), "type"),
    "type with spaces": (job(type=" echo "), "type"),
    "type with NUL": (job(type="echo\x00"), "type"),
    "type of half a megabyte": (job(type="x" * (MEGABYTE // 2)), "type"),
    "NUL in the payload": (job(payload={"a": [1, {"b": "x\x00"}]}), "payload.a.1.b"),
    "NUL in a key": (job(payload={"a": {"\x00": 1}}), "payload.a"),
    "payload of the wrong type": (job(type="count", payload=[]), "payload"),
    "payload null": (job(type="count", payload=None), "payload"),
    "payload with an unknown field": (job(type="count", payload={"of": 1}), "payload.of"),
    "payload out of range": (job(type="count", payload={"to": -1}), "payload.to"),
    "payload beyond 64 bits": (job(type="count", payload={"to": 2**80}), "payload.to"),
    "payload with a word for a number": (job(type="count", payload={"to": "many"}), "payload.to"),
    "payload under an alias": (job(type="fail", payload={"class": "BAD"}), "payload.class"),
    "priority 101": (job(priority=101), "priority"),
    "priority beyond 64 bits": (job(priority=2**80), "priority"),
    "priority 1.0": (job(priority=1.0), "priority"),
    "jitter as text": (job(jitter="yes"), "jitter"),
    "jitter as a number": (job(jitter=1), "jitter"),
    "jitter null": (job(jitter=None), "jitter"),
    "execute_at an epoch": (job(execute_at=1_900_000_000), "execute_at"),
    "execute_at year 10000": (job(execute_at="9999-12-31T23:59:59-14:00"), "execute_at"),
    "not_after before execute_at": (
        job(execute_at="2030-01-02T00:00:00Z", not_after="2030-01-01T23:59:59Z"),
        "not_after",
    ),
    "unknown field": (job(tenant="other"), "tenant"),
    "pool": (job(pool="long"), "pool"),
    "id": (job(id="0190a0b0-0000-7000-8000-000000000001"), "id"),
    "10,000 unknown fields": (job(**{f"f{n}": 0 for n in range(10_000)}), "f0"),
}

#: 422 at ``/jobs/batch`` as a whole.
UNFIT_BATCHES: dict[str, tuple[bytes, str]] = {
    "null": (b"null", "(body)"),
    "array of one": (b"[" + job() + b"]", "(body)"),
    "empty object": (b"{}", "jobs"),
    "jobs null": (b'{"jobs":null}', "jobs"),
    "jobs object": (b'{"jobs":{}}', "jobs"),
    "no jobs": (b'{"jobs":[]}', "jobs"),
    "1,001 jobs": (b'{"jobs":[' + b",".join([job()] * 1001) + b"]}", "jobs"),
    "100,000 jobs": (b'{"jobs":[' + b",".join([b"1"] * 100_000) + b"]}", "jobs"),
    "jobs that are none": (b'{"jobs":[1,null,"x"]}', "jobs.0"),
    "jobs of unknown types": (b'{"jobs":[%b]}' % job(type="x"), "jobs.0.type"),
    "NUL in the only one": (b'{"jobs":[%b]}' % job(payload="\x00"), "jobs.0.payload"),
    "unknown field": (b'{"jobs":[%b],"atomic":true}' % job(), "atomic"),
    "depth 300": (b'{"jobs":[' + b"[" * 300 + b"]" * 300 + b"]}", "(body)"),
}

ID = "0190a0b0-0000-7000-8000-000000000001"
#: 422 at ``/dead-letters/replay``.
UNFIT_REPLAYS: dict[str, tuple[bytes, str]] = {
    "null": (b"null", "(body)"),
    "empty object": (b"{}", "(body)"),
    "both": (json.dumps({"ids": [ID], "filter": {}}).encode(), "(body)"),
    "no ids": (b'{"ids":[]}', "ids"),
    "ids as text": (json.dumps({"ids": ID}).encode(), "ids"),
    "1,001 ids": (json.dumps({"ids": [ID] * 1001}).encode(), "ids"),
    "id that is none": (json.dumps({"ids": [ID, "x"]}).encode(), "ids.1"),
    "id with NUL": (json.dumps({"ids": ["\x00" + ID[1:]]}).encode(), "ids.0"),
    "id a number": (b'{"ids":[1]}', "ids.0"),
    "filter with NUL": (json.dumps({"filter": {"type": "\x00"}}).encode(), "filter.type"),
    "filter by status": (b'{"filter":{"status":"dead"}}', "filter.status"),
    "unknown class": (b'{"filter":{"error_class":"BAD"}}', "filter.error_class"),
    "class in lower case": (b'{"filter":{"error_class":"timeout"}}', "filter.error_class"),
    "type of a megabyte": (json.dumps({"filter": {"type": "x" * 900_000}}).encode(), "filter.type"),
    "before a word": (b'{"filter":{"before":"now"}}', "filter.before"),
    "limit 0": (b'{"filter":{},"limit":0}', "limit"),
    "limit 10,000,001": (b'{"filter":{},"limit":10000001}', "limit"),
    "limit beyond 64 bits": (b'{"filter":{},"limit":%d}' % 2**80, "limit"),
}

#: Every route that takes a body, with what it refuses.
UNFIT_BY_PATH: dict[str, dict[str, tuple[bytes, str]]] = {
    "/applications": UNFIT,
    "/jobs": UNFIT_JOBS,
    "/jobs/batch": UNFIT_BATCHES,
    "/dead-letters/replay": UNFIT_REPLAYS,
}

#: Path and body, refused as well: about a megabyte, of which the checks make the most.
HUNGRY: dict[str, tuple[str, bytes]] = {
    "unknown fields of a schema": (
        "/jobs",
        job(type="count", payload={f"f{n}": 0 for n in range(80_000)}),
    ),
    "a long name above a NUL": (
        "/jobs",
        job(payload={"x" * 400_000: [*([1] * 150_000), "\x00"]}),
    ),
    "1,000 jobs, each with unknown fields": (
        "/jobs/batch",
        b'{"jobs":[%b]}'
        % b",".join([job(type="fail", payload={f"f{n}": 0 for n in range(80)})] * 1_000),
    ),
    "everything": (
        "/applications",
        b'{"candidate":"A\\u0000","candidate":1,"payload":{%b},"payload":[%b],"role":%b}'
        % (
            b",".join(b'"%d":[{},[],null,1e300,"\\ud83d\\ude00"]' % n for n in range(15_000)),
            b"[" * 200 + b"]" * 200,
            b"9" * 4_000,
        ),
    ),
}

#: 202: strange, but in order.
FINE: dict[str, bytes] = {
    "escaped backslash before u0000": payload(rb'"\\u0000"'),
    "escaped slash": payload(rb'"\/"'),
    "surrogate pair": payload(rb'"\ud83d\ude00"'),
    "raw emoji and noncharacters": payload('"😀\ufffe\U0010ffff"'.encode()),
    "SQL": payload(b'"\'); DROP TABLE jobs; --"'),
    "format directives": payload(b'"%(ids)s %s %% {} {0}"'),
    "PostgreSQL array": payload(rb'"{\"a\",NULL}"'),
    "1e5": payload(b"1e5"),
    "1.0": payload(b"1.0"),
    "-0.0": payload(b"-0.0"),
    "smallest double": payload(b"4.9406564584124654e-324"),
    "17 digits": payload(b"0.30000000000000004"),
    "beyond 64 bits": payload(b"18446744073709551616"),
    "integer of 300 digits": payload(b"9" * 300),
    "numbers in numbers": payload(b'{"1":1,"2":[1,1.0,1E0,10e-1]}'),
    "order of keys": payload(b'{"z":1,"a":2,"m":{"y":1,"b":2},"":3}'),
    "doubled keys, the last counts": payload(b'{"a":1,"b":2,"a":3}'),
    "doubled candidate": b'{"candidate":"X","candidate":"Ada","payload":{"x":1}}',
    "depth 150": payload(b"[" * 150 + b"]" * 150),
    "spaces around": b" \r\n\t" + payload(b"1") + b"\n ",
    "candidate of 200 characters": body(candidate="é" * 200),
    "a megabyte": body(payload={"x": "x" * (MEGABYTE - 100)}),
    "100,000 numbers": body(payload={"x": [1.5] * 100_000}),
    "controls": body(candidate="\x01\x7f\u2028\u202e"),
}


def chunked(pieces: int) -> Iterator[bytes]:
    """A body of that many 64 KB pieces whose size nobody is told."""
    for _ in range(pieces):
        yield b"x" * 65_536
