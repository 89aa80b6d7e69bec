"""A simulated scorer that waits and costs nothing, for trials, tests and measurements.

The score is a hash of the application, the same on every run, machine and Python version. The
marks are chosen to add up to it, and the quotes at random from the application's beginning.
"""

from __future__ import annotations

import time
from itertools import islice

from tasks.quota import Report, ignore_reading
from tasks.scorers.evidence import says_something, shortened, texts_of, verified
from tasks.scorers.protocol import ApplicationText, Score, TokenUsage
from tasks.scorers.rubric import CRITERIA, RUBRIC_HASH, CriterionMark, marked
from tasks.scorers.untrusted import plain

_MODEL = "simulated"
#: Texts that are quoted from, how much of each, and words of a quote.
_TEXTS = 20
_CHARACTERS = 2000
_WORDS = 12


class SimulatedScorer:
    """Waits ``seconds``, then gives the score that the application's hash amounts to."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds

    def prepare(self) -> None:
        """Nothing to prepare."""

    def score(self, application: ApplicationText, report: Report = ignore_reading) -> Score:
        """A repeatable score between 0.00 and 100.00; there is no quota to report."""
        if self._seconds > 0:
            time.sleep(self._seconds)
        fingerprint = application.fingerprint()
        digest = bytes.fromhex(fingerprint)
        score = int.from_bytes(digest[:8], "big") % 10_001 / 100
        criteria = _marks(score, digest[8:])
        evidence, dropped = verified(_quotes(application, digest[16:]), application.payload)
        return Score(
            score=score,
            rationale=_rationale(score, criteria),
            model=_MODEL,
            rubric=RUBRIC_HASH,
            input=fingerprint,
            criteria=criteria,
            evidence=evidence,
            dropped_quotes=dropped,
            usage=TokenUsage(input_tokens=0, output_tokens=0),
        )


def _marks(score: float, chance: bytes) -> tuple[CriterionMark, ...]:
    """Marks that amount to the score: all but the first lie around it, the first makes up for them.

    Half of the way to the nearer end is as far as those may go for the first to stay within 0 and
    100, since its weight is more than half of theirs together. Two decimals of it are exact enough:
    what they leave is far below half a hundredth of the score.
    """
    first, *others = CRITERIA
    reach = min(score, 100 - score) / 2
    marks = {
        # Towards the score, never beyond the reach.
        criterion.key: round(score + int(reach * (byte / 127.5 - 1) * 100) / 100, 2)
        for criterion, byte in zip(others, chance, strict=False)
    }
    spent = sum(marks[criterion.key] * criterion.weight for criterion in others)
    marks[first.key] = round((100 * score - spent) / first.weight, 2) + 0.0
    return marked(marks)


def _quotes(application: ApplicationText, chance: bytes) -> dict[str, list[str]]:
    looked_at = islice(texts_of(application.payload), _TEXTS)
    seen = (plain(whole[:_CHARACTERS]) for whole in looked_at)
    found = [text for text in seen if says_something(shortened(text))]
    texts = sorted(found, key=len, reverse=True)[: len(CRITERIA)]
    quotes: dict[str, list[str]] = {criterion.key: [] for criterion in CRITERIA}
    for place, criterion in enumerate(CRITERIA):
        if texts:
            words = texts[chance[2 * place] % len(texts)].split(" ")
            start = chance[2 * place + 1] % max(1, len(words) - _WORDS // 2)
            quote = " ".join(words[start : start + _WORDS])
            few = not says_something(shortened(quote))
            quotes[criterion.key].append(" ".join(words) if few else quote)
    return quotes


def _rationale(score: float, criteria: tuple[CriterionMark, ...]) -> str:
    weakest, *_, strongest = sorted(criteria, key=lambda mark: mark.mark)
    return f"Simulated {score:.2f}: strongest in {strongest.title}, weakest in {weakest.title}."
