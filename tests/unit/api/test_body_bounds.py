"""Whatever a client sends, checking it takes work and memory in proportion to its size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from app import errors
from app.admission.intake import job_submission
from app.api.http.body import JsonDocument, validate_body, validate_outline
from app.api.http.problems import problem_of
from app.api.routes.batch import no_item_is_valid, read_item
from app.api.schemas import requests
from app.api.services import Services
from app.errors import FairlineError, MalformedBody, ValidationFailed
from app.tenants.tenant import TenantProfile
from app.validation import BYTES_PER_CHARACTER, FREE_BYTES, ErrorBudget, find_nul
from tasks.errors_of_schema import MANY, MOST_ERRORS, first_errors
from tasks.registry import JobType, job_type, load_types

#: Memory of Python that a body may take: so much, and so much per byte. A value of two bytes
#: takes eight when parsed, one of ten under a name a hundred.
FREE = 2 * FREE_BYTES
MEMORY_PER_BYTE = 150
TENANT = TenantProfile(1, "acme")


class Node(BaseModel):
    """Everything that can hold more of itself, and knows its fields."""

    model_config = ConfigDict(extra="forbid")

    by_name: dict[str, Node] = {}
    several: list[Node] = []
    numbers: list[int] = []
    either: Node | list[int] | dict[str, int] | None = None


def run(*_: object) -> None:
    """Does nothing."""


@pytest.fixture(scope="module", autouse=True)
def types() -> dict[str, JobType]:
    job_type("bounds.node", pool="short", schema=Node)(run)
    return load_types()


SCHEMAS = [
    *(requests.SubmitApplication, requests.SubmitJob, requests.SubmitBatch, requests.Replay),
    *(requests.Discard, requests.CreateSchedule, requests.ChangeSchedule, requests.TenantTerms),
    *(requests.NewTenant, requests.NewKey, requests.QuotaTerms),
]
#: Names that schemas know, at any depth, and others.
NAMES = st.sampled_from(
    [
        *("payload", "type", "jobs", "ids", "filter", "limits", "priority", "candidate", "x"),
        *("by_name", "several", "numbers", "either", "\x00", "small", "execute_at"),
    ]
)
LEAVES = st.sampled_from([1, "x", "\x00", None, {}, [], 1.5, True, "2030-01-01T00:00:00Z", "echo"])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """A random document, made wide, deep and long at a random place."""
    body: Any = draw(TREES)
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(["wide list", "wide object", "long name", "deep", "known"])):
            case "wide list" if len(orjson.dumps(body)) < 100:
                body = [body] * draw(st.integers(1, 3_000))
            case "wide object" if len(orjson.dumps(body)) < 100:
                body = {f"k{n}": body for n in range(draw(st.integers(1, 2_000)))}
            case "long name":
                body = {draw(NAMES) * draw(st.integers(1, 1_500)): body}
            case "deep":
                for _ in range(draw(st.integers(1, 60))):
                    body = [body]
            case _:
                body = {draw(NAMES): body}
    return body


def peak_of(check: Callable[[], object]) -> int:
    """The most memory that Python took meanwhile."""
    tracemalloc.start()
    try:
        check()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refusal(check: Callable[[], object]) -> FairlineError | None:
    """Why it is refused, with the answer made of it."""
    try:
        check()
    except FairlineError as error:
        problem_of(error)
        return error
    return None


def checks_of(raw: bytes) -> Iterator[tuple[bytes, Callable[[], object]]]:
    """Bodies made of these bytes, and all that the routes do with them before they use them."""
    for schema in SCHEMAS:
        yield raw, partial(as_body, raw, schema)
    for name in ("bounds.node", "score_application", "count", "fail", "echo"):
        job = b'{"type":"%b","payload":%b}' % (name.encode(), raw)
        yield job, partial(as_job, job)
        batch = b'{"jobs":[%b]}' % b",".join([job] * 3)
        yield batch, partial(as_batch, batch)


def as_body(raw: bytes, schema: type[BaseModel]) -> None:
    validate_body(JsonDocument(raw, orjson.loads(raw)), schema)


def as_job(raw: bytes) -> None:
    body = validate_body(JsonDocument(raw, orjson.loads(raw)), requests.SubmitJob)
    job_submission(load_types(), 1, body.type, body.payload)


def as_batch(raw: bytes) -> None:
    items = validate_outline(JsonDocument(raw, orjson.loads(raw)), requests.SubmitBatch).jobs
    services = cast(Services, SimpleNamespace(types=load_types(), cell=0))
    budget = ErrorBudget()
    raise no_item_is_valid([read_item(services, TENANT, item, True, budget) for item in items])


@settings(max_examples=20, deadline=None)
@given(bodies())
@example({"payload": {"x" * 20_000: [1] * 10_000}})
@example({"payload": {"x" * 20_000: ["\x00"] * 2_000}})
@example({"limits": {"x" * 20_000: {f"k{n}": 1 for n in range(2_000)}}})
@example({"by_name": {"x" * 20_000: {f"k{n}": 1 for n in range(2_000)}}})
@example({"filter": {f"k{n}": 1 for n in range(3_000)}})
@example({f"k{n}": 1 for n in range(3_000)})
@example({"ids": [1] * 20_000})
@example({"numbers": ["x"] * 10_000})
@example({"several": [{"a": 1}] * 5_000})
def test_checks_take_memory_in_proportion_to_the_body(body: Any) -> None:
    raw = orjson.dumps(body)
    for sent, check in checks_of(raw):
        peak = peak_of(partial(refusal, check))
        assert peak <= FREE + MEMORY_PER_BYTE * len(sent), f"{check}: {peak:,} for {len(sent):,}"


@settings(max_examples=40, deadline=None)
@given(bodies())
@example({"x" * 20_000: {f"k{n}": 1 for n in range(2_000)}})
def test_errors_of_a_schema_take_memory_in_proportion_to_the_body(body: Any) -> None:
    """Pydantic's own memory is not Python's: counted are the paths that it has to copy."""
    body = {"by_name": body}
    try:
        ErrorBudget().spend(body, Node)
        Node.model_validate(body)
    except ValidationFailed:
        return
    except ValidationError as error:
        copied = sum(len(str(step)) for entry in error.errors() for step in entry["loc"])
        assert copied <= FREE_BYTES + BYTES_PER_CHARACTER * len(orjson.dumps(body))


def test_a_nul_far_inside_is_found_with_its_path() -> None:
    assert find_nul({"a": [1, {"b": ["x", "\x00"]}]}) == "a.1.b.1"
    assert find_nul({"a": [{"b\x00": 1}]}) == "a.0"
    assert find_nul(["", [], {}, [[["x"]]]]) is None
    assert find_nul("\x00") == find_nul({"\x00": 1}) == "(body)"


@given(TREES)
def test_every_nul_is_found(tree: Any) -> None:
    assert (find_nul(tree) is not None) == (b"\\u0000" in orjson.dumps(tree))


def test_a_name_of_20_kb_over_10_000_values_is_not_repeated_for_each() -> None:
    """It took 200 MB, since the path to every value was built before it was looked at."""
    raw = orjson.dumps({"type": "echo", "payload": {"x" * 20_000: [*([1] * 12_000), "\x00"]}})
    assert len(raw) < 45_000
    document = JsonDocument(raw, orjson.loads(raw))
    peak = peak_of(lambda: refusal(lambda: validate_body(document, requests.SubmitJob)))
    assert peak < 1_000_000


def test_the_first_errors_are_listed_and_the_rest_counted() -> None:
    fields = {f"k{n}": 1 for n in range(100_000)}
    for refused in (
        refusal(lambda: job_submission(load_types(), 1, "count", fields)),
        refusal(lambda: validate_body(JsonDocument(b"{}", fields), requests.SubmitJob)),
    ):
        assert isinstance(refused, ValidationFailed)
        assert len(refused.errors) == MOST_ERRORS
        assert refused.detail.endswith("The first 20 of 100,000 errors are listed.")


@pytest.mark.parametrize("count", [1, MOST_ERRORS, MANY, MANY + 1, 3 * MANY])
def test_few_and_many_errors_are_listed_alike(count: int) -> None:
    with pytest.raises(ValidationError) as failure:
        Node.model_validate({"numbers": ["x"] * count})
    found = [(tuple(entry["loc"]), entry["msg"]) for entry in first_errors(failure.value)]
    whole = [(entry["loc"], entry["msg"]) for entry in failure.value.errors()]
    assert found == whole[:MOST_ERRORS]
    listed = errors.invalid_document(failure.value, "payload")
    assert listed.total == count and len(listed.errors) == min(count, MOST_ERRORS)


def test_large_payloads_that_match_their_schema_are_accepted() -> None:
    for payload in (
        {"numbers": [1] * 400_000},
        {"several": [{"numbers": [1, 2, 3], "by_name": {"one": {"numbers": [1]}}}] * 5_000},
        {"by_name": {f"name{n}": {"numbers": [n]} for n in range(10_000)}},
    ):
        assert job_submission(load_types(), 1, "bounds.node", payload).type == "bounds.node"


def test_a_batch_shares_what_its_errors_may_take() -> None:
    item = {"type": "bounds.node", "payload": {"by_name": {"x" * 2_000: {"numbers": ["x"] * 300}}}}
    services = cast(Services, SimpleNamespace(types=load_types(), cell=0))
    budget = ErrorBudget()
    read = [read_item(services, TENANT, item, False, budget) for _ in range(10)]
    reasons = [one.errors[0].field for one in read if isinstance(one, ValidationFailed)]
    assert reasons[0].startswith("payload.by_name.") and reasons[-1] == "payload"


def test_depth_is_bounded() -> None:
    raw = b'{"type":"echo","payload":' + b"[" * 900 + b"]" * 900 + b"}"
    refused = refusal(
        lambda: validate_body(JsonDocument(raw, orjson.loads(raw)), requests.SubmitJob)
    )
    assert isinstance(refused, ValidationFailed | MalformedBody)
