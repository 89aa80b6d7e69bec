"""What a job type may say of itself, and what is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from models.pools import POOLS
from tasks import registry
from tasks.context import JobContext
from tasks.errors import Permanent
from tasks.registry import JobType, job_type, load_types
from tasks.retry.backoff import APP_ERROR_SECONDS


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> dict[str, JobType]:
    types: dict[str, JobType] = {}
    monkeypatch.setattr(registry, "_types", types)
    return types


def nothing(ctx: JobContext, payload: Any) -> Any: ...


class Invoice(BaseModel):
    """Stricter than it was when older jobs were submitted."""

    model_config = ConfigDict(extra="forbid")

    customer: str = "nobody"
    cents: int = Field(gt=0)


def given(ctx: JobContext, payload: Any) -> Any:
    return payload


def test_the_function_gets_the_payload_as_the_schema_reads_it(empty: dict[str, JobType]) -> None:
    job_type("bill", pool="short", schema=Invoice)(given)
    job_type("plain", pool="short")(given)
    sent = {"cents": "5"}
    assert empty["bill"].call(JobContext("id"), sent) == Invoice(customer="nobody", cents=5)
    assert empty["plain"].call(JobContext("id"), sent) is sent


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"cents": -7}, "payload.cents: Input should be greater than 0"),
        ({"cents": 7, "tax": 1}, "payload.tax: Extra inputs are not permitted"),
        ({"customer": 1}, "payload.customer: .*; payload.cents: Field required"),
        (None, "payload: Input should be a valid dictionary"),
    ],
)
def test_a_payload_that_no_longer_fits_is_a_failure_for_good(
    empty: dict[str, JobType], payload: Any, message: str
) -> None:
    job_type("bill", pool="short", schema=Invoice)(given)
    with pytest.raises(Permanent, match=f"does not match the schema of bill: {message}") as failure:
        empty["bill"].call(JobContext("id"), payload)
    assert "-7" not in str(failure.value), "what tenants send is not for the error"


def test_what_the_function_itself_validates_is_its_own_affair(empty: dict[str, JobType]) -> None:
    job_type("bill", pool="short", schema=Invoice)(lambda ctx, _: Invoice.model_validate({}))
    with pytest.raises(ValueError, match="cents"):
        empty["bill"].call(JobContext("id"), {"cents": 1})


def test_a_type_that_says_little_gets_what_its_pool_gives(empty: dict[str, JobType]) -> None:
    job_type("quiet", pool="long")(nothing)
    quiet, pool = empty["quiet"], POOLS["long"]
    assert (quiet.limits.tries, quiet.memory_mb) == (pool.tries, pool.memory_mb)
    assert quiet.limits.backoff_seconds == APP_ERROR_SECONDS
    assert quiet.timeout_seconds == 300


def test_what_a_type_says_counts(empty: dict[str, JobType]) -> None:
    job_type(
        "particular",
        pool="short",
        timeout=7,
        tries=9,
        backoff=[2, 3],
        class_tries={"TIMEOUT": 4},
        memory_mb=32,
        cpu_seconds=1.5,
    )(nothing)
    said = empty["particular"]
    assert (said.timeout_seconds, said.memory_mb, said.cpu_seconds) == (7, 32, 1.5)
    assert said.limits.backoff_seconds == (2, 3)
    assert (said.limits.tries, said.limits.class_tries) == (9, {"TIMEOUT": 4})


@pytest.mark.parametrize("name", ["", "9lives", "with space", "ümlaut", "a" * 101, "a/b", "a\nb"])
def test_a_name_that_fits_nowhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name for a job type"):
        job_type(name, pool="short")


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"pool": "gpu"}, "unknown pool"),
        ({"timeout": 0}, "at most 300 s"),
        ({"timeout": -1}, "at most 300 s"),
        ({"timeout": 301}, "at most 300 s"),
        ({"timeout": float("nan")}, "at most 300 s"),
        ({"timeout": float("inf")}, "at most 300 s"),
        ({"class_tries": {"TIMEOUT": 2, "BOREDOM": 1}}, "BOREDOM"),
        ({"class_tries": {"TIMEOUT": 0}}, "at least one attempt"),
        ({"tries": 0}, "at least one attempt"),
        ({"backoff": []}, "each 0 to a year"),
        ({"backoff": [1, -1]}, "each 0 to a year"),
        ({"backoff": [float("nan")]}, "each 0 to a year"),
        ({"backoff": [float("inf")]}, "each 0 to a year"),
        ({"memory_mb": 0}, "must be positive"),
        ({"cpu_seconds": -0.5}, "must be positive"),
        ({"cancel": "never"}, "cancel must be one of"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(said: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        job_type("odd", **{"pool": "medium", **said})


def test_two_functions_cannot_have_one_name() -> None:
    job_type("twice", pool="short")(nothing)
    job_type("twice", pool="short")(nothing)  # its module was imported again
    with pytest.raises(ValueError, match="registered twice"):
        job_type("twice", pool="short")(lambda ctx, payload: None)


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("no.such.module", r"put no/such/module\.py into /.+"),
        ("myjobs.py", "write myjobs, without"),
    ],
)
def test_a_module_that_is_not_there_is_an_error_in_one_line(module: str, advice: str) -> None:
    with pytest.raises(SystemExit, match=f"FAIRLINE_JOB_MODULES: .*{module}.*{advice}"):
        load_types(module)


def test_a_module_that_misses_another_one_shows_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "incomplete_jobs.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load_types("incomplete_jobs")
