"""Names of spans' attributes and of metrics are those of OpenTelemetry's conventions."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import (
    gen_ai_attributes,
    messaging_attributes,
)
from opentelemetry.semconv._incubating.metrics import (
    db_metrics,
    gen_ai_metrics,
    messaging_metrics,
)
from opentelemetry.semconv.attributes import (
    client_attributes,
    error_attributes,
    http_attributes,
    server_attributes,
    url_attributes,
    user_agent_attributes,
)
from opentelemetry.semconv.metrics import http_metrics
from opentelemetry.semconv.schemas import Schemas

from app.stack.spec import PROJECT_ROOT
from app.telemetry.scope import SCHEMA_URL
from models.jobs.trace_context import MOST_STATE, kept_context, trace_headers

MODULES = (
    *(gen_ai_attributes, messaging_attributes, client_attributes, error_attributes),
    *(http_attributes, server_attributes, url_attributes, user_agent_attributes),
    *(db_metrics, gen_ai_metrics, messaging_metrics, http_metrics),
)
#: Families of the conventions, as their names begin.
FAMILIES = ("messaging", "gen_ai", "error", "http", "url", "server", "client", "user_agent")
NAME = re.compile(rf'"((?:{"|".join(FAMILIES)})\.[a-z_.]+)"')
DECLARED = re.compile(r'^[A-Z_]+: Final = "([\w.]+)"\n"""(.*?)"""', re.M | re.S)
USED = sorted(
    {
        name
        for path in (PROJECT_ROOT / "app/telemetry").glob("*.py")
        for name in NAME.findall(path.read_text())
    }
)


def declared(module: ModuleType) -> dict[str, str]:
    """The names that a module declares, each with the text behind it."""
    source = Path(module.__file__ or "").read_text()
    return {name: text.strip() for name, text in DECLARED.findall(source)}


KNOWN = {name: text for module in MODULES for name, text in declared(module).items()}


def test_the_conventions_are_those_of_the_newest_schema_that_is_installed() -> None:
    assert list(Schemas)[-1].value == SCHEMA_URL


@pytest.mark.parametrize("name", USED)
def test_a_name_of_a_family_is_in_the_conventions_and_not_outdated(name: str) -> None:
    text = KNOWN[name]
    # Those for models were moved to a repository of their own, under the same names.
    assert not text.startswith("Deprecated") or "Moved to the [OpenTelemetry GenAI" in text


def test_what_is_looked_for_is_found() -> None:
    assert {
        "messaging.process.duration",
        "messaging.client.operation.duration",
        "gen_ai.client.token.usage",
        "http.server.request.duration",
        "error.type",
    } <= set(USED)


HEADER = f"00-{'a' * 32}-{'b' * 16}-01"


@given(st.lists(st.from_regex(r"[a-z]{1,9}=[!-+\--<>-~]{1,200}", fullmatch=True), max_size=32))
def test_a_context_comes_back_from_the_row_as_far_as_it_fits(entries: list[str]) -> None:
    found = trace_headers(kept_context(HEADER, ",".join(entries)))
    assert found.pop("traceparent") == HEADER
    state = found.pop("tracestate", "")
    assert len(state) <= MOST_STATE and not found
    kept = state.split(",") if state else []
    assert kept == entries[: len(kept)]
    assert kept == entries or len(",".join(entries[: len(kept) + 1])) > MOST_STATE


def test_without_a_trace_nothing_is_kept() -> None:
    assert kept_context(None, "a=b") is None
    assert trace_headers(None) == trace_headers("") == {}
