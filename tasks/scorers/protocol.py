"""The scorer protocol: its input, and its result.

A ``Score`` is the record of how it came about. It validates itself and raises ``MalformedAnswer``
for a value that the leaderboard could not show or that its marks do not add up to. As JSON it has
less than ``RECORD_BYTES``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from tasks.errors import MalformedAnswer
from tasks.quota import Report, ignore_reading
from tasks.scorers.rubric import CriterionMark, weighted_score

#: The longest rationale, in characters and as JSON.
MAX_RATIONALE_CHARACTERS = 600
MAX_RATIONALE_BYTES = 1200
#: Quotes for one criterion; the length of one in characters and as JSON.
MOST_QUOTES = 2
QUOTE_CHARACTERS = 200
QUOTE_BYTES = 240
#: The largest score as JSON.
RECORD_BYTES = 4096
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ApplicationText:
    """One application to be scored; all of it is untrusted."""

    candidate: str
    role: str
    #: The application itself, a text or any JSON object.
    payload: str | dict[str, Any]

    def canonical_json(self) -> str:
        """JSON that does not depend on the order of keys."""
        return json.dumps(
            {"candidate": self.candidate, "role": self.role, "payload": self.payload},
            sort_keys=True,
            separators=(",", ":"),
        )

    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.canonical_json().encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens one call was charged for; zero for a scorer that uses none."""

    #: All input tokens, whether fresh, written to the prompt cache or read from it.
    input_tokens: int
    #: All output tokens, thinking included.
    output_tokens: int

    def __post_init__(self) -> None:
        for count in (self.input_tokens, self.output_tokens):
            if type(count) is not int or count < 0:
                raise MalformedAnswer(f"token usage is not a count: {count!r:.80}")


@dataclass(frozen=True, slots=True)
class Score:
    """A valid score and its record."""

    #: 0 to 100 with at most two decimals.
    score: float
    #: Why, in a sentence or two.
    rationale: str
    #: The model that answered, as it named itself.
    model: str
    #: Hash of the rubric the model was given.
    rubric: str
    #: Hash of the application it was given: ``Application.fingerprint``.
    input: str
    #: What each criterion was given.
    criteria: tuple[CriterionMark, ...]
    #: Quotes by criterion, each of which occurs in the application.
    evidence: Mapping[str, Sequence[str]]
    #: Quotes that were dropped.
    dropped_quotes: int
    usage: TokenUsage

    def __post_init__(self) -> None:
        if isinstance(self.score, bool) or not isinstance(self.score, (int, float)):
            raise MalformedAnswer(f"score is not a number: {self.score!r:.80}")
        if not math.isfinite(self.score) or not 0 <= self.score <= 100:
            raise MalformedAnswer(f"score is not within 0 to 100: {self.score!r:.80}")
        if round(self.score, 2) != self.score:
            raise MalformedAnswer(f"score has more than two decimals: {self.score!r}")
        # Adding zero turns -0.0 into 0.0, which is how it would otherwise be shown.
        object.__setattr__(self, "score", float(self.score) + 0.0)
        _check_rationale(self.rationale)
        if (amount := weighted_score(self.criteria)) != self.score:
            raise MalformedAnswer(f"the marks amount to {amount}, the score is {self.score}")
        _check_evidence(self.evidence, {mark.key for mark in self.criteria})


class Scorer(Protocol):
    """Anything that can score an application; safe to call from many threads or greenlets."""

    def prepare(self) -> None:
        """Called while the worker starts; raises if the scorer could never score."""

    def score(self, application: ApplicationText, report: Report = ignore_reading) -> Score:
        """The score, or ``MalformedAnswer``, ``DependencyFailure`` or ``Permanent``.

        ``report`` is called with what the response said about the quota.
        """
        ...


def _check_rationale(rationale: str) -> None:
    if not isinstance(rationale, str) or not rationale.strip():
        raise MalformedAnswer("the rationale is empty")
    _check_text(rationale, "the rationale")
    if len(rationale) > MAX_RATIONALE_CHARACTERS or json_bytes(rationale) > MAX_RATIONALE_BYTES:
        raise MalformedAnswer(f"the rationale has {len(rationale)} characters")


def _check_evidence(evidence: Mapping[str, Sequence[str]], keys: Set[str]) -> None:
    if not evidence.keys() <= keys:
        raise MalformedAnswer("there are quotes for an unknown criterion")
    for key, quotes in evidence.items():
        if len(quotes) > MOST_QUOTES:
            raise MalformedAnswer(f"there are {len(quotes)} quotes for {key}")
        for quote in quotes:
            _check_text(quote, "a quote")
            if len(quote) > QUOTE_CHARACTERS or json_bytes(quote) > QUOTE_BYTES:
                raise MalformedAnswer(f"a quote has {len(quote)} characters")


def _check_text(text: str, what: str) -> None:
    # PostgreSQL stores neither, so they would fail the settle and not the answer.
    if _NOT_TEXT.search(text):
        raise MalformedAnswer(f"{what} has characters that are not text")


def json_bytes(text: str) -> int:
    """Size of a text as JSON."""
    return len(orjson.dumps(text))
