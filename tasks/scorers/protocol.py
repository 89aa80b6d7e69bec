"""What a scorer takes and what it gives back, whoever does the scoring.

A ``Score`` cannot exist with a value the leaderboard could not show: it checks itself and raises
``MalformedAnswer``. Nothing here says whether a score is deserved, and two scorers need not agree.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.errors import MalformedAnswer
from tasks.quota import Report, nobody

#: The longest rationale that still counts as short, in characters.
MAX_RATIONALE_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Application:
    """One application to be scored; every part of it was written by somebody we do not trust."""

    #: Who applies, as the tenant names them.
    candidate: str
    #: What they apply for.
    role: str
    #: The application itself, any JSON object.
    payload: dict[str, Any]

    def canonical_json(self) -> str:
        """The same text for the same application, whatever the order of its keys."""
        return json.dumps(
            {"candidate": self.candidate, "role": self.role, "payload": self.payload},
            sort_keys=True,
            separators=(",", ":"),
        )

    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON: which input a score belongs to."""
        return hashlib.sha256(self.canonical_json().encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
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
    """A valid score and where it came from."""

    #: 0 to 100 with at most two decimals.
    score: float
    #: Why, in a sentence or two.
    rationale: str
    #: The model that answered, as it named itself.
    model: str
    #: Hash of the rubric the model was given.
    rubric: str
    #: What the answer cost.
    usage: Usage

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


class Scorer(Protocol):
    """Anything that can score an application; safe to call from many threads or greenlets."""

    def prepare(self) -> None:
        """Get ready while the worker starts; raises if it could never score."""

    def score(self, application: Application, report: Report = nobody) -> Score:
        """The score, or ``MalformedAnswer``, ``DependencyFailure`` or ``Permanent``.

        ``report`` is told what the answer said about the quota, whatever else it said.
        """
        ...


def _check_rationale(rationale: str) -> None:
    if not isinstance(rationale, str) or not rationale.strip():
        raise MalformedAnswer("the rationale is empty")
    if len(rationale) > MAX_RATIONALE_CHARACTERS:
        raise MalformedAnswer(f"the rationale has {len(rationale)} characters")
    # PostgreSQL stores neither, so they would fail the settle and not the answer.
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in rationale):
        raise MalformedAnswer("the rationale has characters that are not text")
