"""The record of a score: quotes that are true, marks that amount to it, a size that is bounded."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.scorers.evidence import says_something, shortened, texts_of, verified
from tasks.scorers.protocol import (
    MOST_QUOTES,
    QUOTE_BYTES,
    QUOTE_CHARACTERS,
    RECORD_BYTES,
    ApplicationText,
    Score,
    TokenUsage,
)
from tasks.scorers.rubric import CRITERIA, CriterionMark, marked, weighted_score
from tasks.scorers.simulated import SimulatedScorer, _marks
from tasks.scorers.untrusted import plain

PAYLOAD = {
    "cv": "Built a\n  compiler\tin six weeks.",
    "jobs": [{"at": "Acme", "years": 7}, "led <b>four</b> people\u200b"],
    "letter": "Dear all,",
    "signs": "\u200d\ufe0f\u2800\u200d\u2800 A1 C++ ❤️❤️❤️ Java\x85Script Type\x0bScript",
}


@pytest.mark.parametrize(
    ("quote", "kept"),
    [
        ("compiler in six", "compiler in six"),
        ("  Built   a compiler\n", "Built a compiler"),
        ("led <b>four</b> people", "led <b>four</b> people"),
        ("\u200bAc\u200bme\0", "Acme"),
        ("built a compiler", None),  # another case
        ("Acme led", None),  # two texts
        ("Dear all, Built a compiler", None),
        ("years", None),  # the name of a field
        ("7", None),  # a number
        ("", None),
        (" \u200b ", None),
        ("\u200d", None),  # nobody sees it, though it is kept in words
        ("\u200d\ufe0f", None),
        ("\u2800\u200d\u2800", None),
        ("❤️❤️❤️", None),
        ("A", None),
        ("A1", None),  # too short to say anything
        ("A1 C++", "A1 C++"),
        ("JavaScript", None),  # two lines
        ("Java\nScript", "Java Script"),
        ("Type Script", "Type Script"),
        ("TypeScript", None),
    ],
)
def test_a_quote_is_kept_if_it_occurs_but_for_white_space(quote: str, kept: str | None) -> None:
    kept_quotes, dropped = verified({"clarity": [quote]}, PAYLOAD)
    assert kept_quotes == {"clarity": () if kept is None else (kept,)}
    assert dropped == (kept is None)


def test_only_the_first_two_that_are_true_are_kept_and_only_false_ones_counted() -> None:
    claims = ["Nobel prize", "Acme", "Acme", "Dear", "Built", "Fields medal"]
    kept_quotes, dropped = verified({"growth": claims, "clarity": []}, PAYLOAD)
    assert kept_quotes == {"growth": ("Acme", "Dear"), "clarity": ()}
    assert dropped == 2


json_values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), json_values), st.lists(st.text(), max_size=4), st.data())
def test_what_is_kept_is_true_and_short_whatever_is_claimed(
    payload: dict[str, Any], inventions: list[str], data: st.DataObject
) -> None:
    texts = list(texts_of(payload))
    truths = data.draw(st.lists(st.sampled_from(texts), max_size=4)) if texts else []
    kept_quotes, dropped = verified({"growth": truths + inventions, "clarity": inventions}, payload)
    seen = [plain(text) for text in texts]
    for quotes in kept_quotes.values():
        assert len(quotes) <= MOST_QUOTES
        for quote in quotes:
            assert any(quote in text for text in seen)
            assert says_something(quote)
            assert len(quote) <= QUOTE_CHARACTERS
            assert len(orjson.dumps(quote)) <= QUOTE_BYTES
    true = [text for text in truths if says_something(shortened(plain(text)))]
    assert dropped <= len(truths) - len(true) + 2 * len(inventions)


def test_a_quote_of_which_only_signs_would_be_left_is_dropped() -> None:
    text = "-" * QUOTE_CHARACTERS + "compiler"
    assert verified({"growth": [text]}, {"cv": text})[1] == 1


@pytest.mark.parametrize("character", ["x", "é", "語", "👩", '"', "\\", "‍"])
def test_a_quote_that_is_too_long_is_shortened_and_still_true(character: str) -> None:
    text = "abc" + character * 5000
    ((quote,),) = verified({"growth": [text]}, {"cv": text})[0].values()
    assert quote == text[: len(quote)]
    assert len(quote) <= QUOTE_CHARACTERS
    assert QUOTE_BYTES - 8 < len(orjson.dumps(quote)) <= QUOTE_BYTES or len(quote) == 200


@pytest.mark.parametrize("character", ["x", "é", "語", "👩", '"'])
def test_the_largest_record_there_can_be_is_bounded(character: str) -> None:
    share = {"x": 600, "é": 599, "語": 399, "👩": 299, '"': 599}[character]
    quotes, _ = verified(
        {c.key: [f"abc{character * 900}", f"bc1{character * 900}"] for c in CRITERIA},
        {"cv": f"abc{character * 1000}", "letter": f"bc1{character * 1000}"},
    )
    marks = marked({c.key: 12.345678901234567 for c in CRITERIA})
    score = Score(
        weighted_score(marks),
        character * share,
        "👩" * 40,
        "f" * 16,
        "f" * 64,
        marks,
        quotes,
        999_999,
        TokenUsage(2**63 - 1, 2**63 - 1),
    )
    assert sum(len(of) for of in quotes.values()) == MOST_QUOTES * len(CRITERIA)
    assert len(orjson.dumps(asdict(score))) < RECORD_BYTES


@given(st.integers(0, 10_000), st.binary(min_size=3, max_size=3))
def test_there_are_marks_for_every_simulated_score(hundredths: int, chance: bytes) -> None:
    marks = _marks(hundredths / 100, chance)
    assert weighted_score(marks) == hundredths / 100
    assert all(0 <= mark.mark <= 100 for mark in marks)


def test_a_record_that_was_stored_gives_its_score_again() -> None:
    application = ApplicationText("Ada", "engineer", PAYLOAD)
    stored = orjson.loads(orjson.dumps(asdict(SimulatedScorer(seconds=0).score(application))))
    assert weighted_score(CriterionMark(**mark) for mark in stored["criteria"]) == stored["score"]
    assert stored["input"] == application.fingerprint()
    strongest = max(stored["criteria"], key=lambda mark: mark["mark"])
    assert f"strongest in {strongest['title']}" in stored["rationale"]
