"""The answer a model must give: its JSON schema, and its validation on arrival.

Structured output makes the shape very likely, not certain: a truncated, refused or proxied answer
does not follow it, and ranges cannot be part of the schema at all. An answer that fails a check
is a ``MalformedAnswer``; nothing is repaired or guessed.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, NoReturn

from tasks.errors import MalformedAnswer
from tasks.scorers.rubric import CRITERIA
from tasks.scorers.untrusted import plain


def _object_schema(**properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _quotes_schema(title: str) -> dict[str, object]:
    description = f"At most two quotes of at most 200 characters: {title}."
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _mark_schema(title: str) -> dict[str, object]:
    return {"type": "number", "description": f"Mark from 0 to 100: {title}."}


#: JSON schema of the answer. The API refuses ``minimum``, ``maximum`` and ``maxLength``, so the
#: descriptions carry them. Quotes and the rationale come first: a model writes in this order, and
#: marks that follow a stated reason are steadier than a reason found for given marks.
ANSWER_SCHEMA = _object_schema(
    evidence=_object_schema(**{c.key: _quotes_schema(c.title) for c in CRITERIA}),
    rationale={"type": "string", "description": "One or two sentences, at most 300 characters."},
    criteria=_object_schema(**{c.key: _mark_schema(c.title) for c in CRITERIA}),
)


class ModelAnswer(NamedTuple):
    #: By criterion.
    marks: dict[str, float]
    rationale: str
    #: By criterion, not verified yet.
    quotes: dict[str, list[str]]


def parse_answer(text: str) -> ModelAnswer:
    """The model's answer; raises MalformedAnswer if it is invalid."""
    try:
        answer = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise MalformedAnswer("the answer is nested too deeply") from None
    except ValueError as error:
        raise MalformedAnswer(f"the answer is not JSON: {error}") from None
    fields = _object(answer, "the answer", {"evidence", "rationale", "criteria"})
    keys = {c.key for c in CRITERIA}
    marks = _object(fields["criteria"], "criteria", keys)
    quotes = _object(fields["evidence"], "evidence", keys)
    rationale = fields["rationale"]
    if not isinstance(rationale, str):
        raise MalformedAnswer("the rationale is not a string")
    return ModelAnswer(
        {key: _mark(key, mark) for key, mark in marks.items()},
        plain(rationale),
        {key: _quotes(key, given) for key, given in quotes.items()},
    )


def _object(value: Any, what: str, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedAnswer(f"{what} is not an object")
    if missing := sorted(keys - value.keys()):
        raise MalformedAnswer(f"{what} lacks {', '.join(missing)}")
    if extra := len(value.keys() - keys):
        raise MalformedAnswer(f"{what} has {extra} unexpected fields")
    return value


def _mark(key: str, mark: Any) -> float:
    if isinstance(mark, bool) or not isinstance(mark, (int, float)):
        raise MalformedAnswer(f"the mark for {key} is not a number")
    if not 0 <= mark <= 100 or not math.isfinite(mark):
        raise MalformedAnswer(f"the mark for {key} is not within 0 to 100: {mark!r:.40}")
    return float(mark) + 0.0  # not -0.0


def _quotes(key: str, quotes: Any) -> list[str]:
    if not isinstance(quotes, list) or not all(isinstance(quote, str) for quote in quotes):
        raise MalformedAnswer(f"the evidence for {key} is not a list of quotes")
    return quotes


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
