"""Quotes that support a mark, each verified against the application.

A quote is kept if it occurs in the submitted text, or in one string of the object, compared
without invisible characters and with every run of white space as one space; names of fields do not
count. That it occurs does not mean that it supports the mark: it is untrusted text and must be
shown as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.scorers.protocol import MOST_QUOTES, QUOTE_BYTES, QUOTE_CHARACTERS, json_bytes
from tasks.scorers.untrusted import plain

#: Letters and digits that a quote has at least.
LEAST_LETTERS = 3


def verified(
    claimed: Mapping[str, Sequence[str]], payload: str | Mapping[str, Any]
) -> tuple[dict[str, tuple[str, ...]], int]:
    """The first quotes of each criterion that occur in the payload, and how many were dropped."""
    # No plain text has a line end, so no quote can reach from one text into the next.
    application = "\n".join(map(plain, texts_of(payload)))
    dropped = 0
    kept: dict[str, tuple[str, ...]] = {}
    for key, quotes in claimed.items():
        found = []
        for quote in map(plain, quotes):
            if quote in application and says_something(short := shortened(quote)):
                found.append(short)
            else:
                dropped += 1
        kept[key] = tuple(dict.fromkeys(found))[:MOST_QUOTES]
    return kept, dropped


def says_something(quote: str) -> bool:
    """Whether a quote has enough letters and digits."""
    return sum(map(str.isalnum, quote)) >= LEAST_LETTERS


def shortened(quote: str) -> str:
    """The beginning of a quote, as much as is kept."""
    quote = quote[:QUOTE_CHARACTERS]
    while json_bytes(quote) > QUOTE_BYTES:
        # A character has at most six bytes as JSON: so many at least are too many.
        quote = quote[: -max(1, (json_bytes(quote) - QUOTE_BYTES) // 6)]
    return quote.rstrip()


def texts_of(payload: str | Mapping[str, Any]) -> Iterator[str]:
    """The text, or all strings that are values inside, whatever the order of the keys."""
    pending: list[Any] = [payload]
    while pending:
        match pending.pop():
            case str() as text:
                yield text
            case dict() as fields:
                pending.extend(fields[key] for key in sorted(fields, reverse=True))
            case list() as values:
                pending.extend(reversed(values))
