"""``Idempotency-Key``: a structured-field string, or the same text without the quotes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.api.http.idempotency import key_text

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255)


@given(printable)
def test_whatever_is_quoted_comes_back(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    assert key_text(f'"{escaped}"') == text


@given(printable.filter(lambda text: text[0] not in ' "'))
def test_what_is_not_quoted_is_the_key(text: str) -> None:
    assert key_text(text) == text


@given(st.text(max_size=600))
def test_a_key_is_printable_and_bounded_or_none(text: str) -> None:
    found = key_text(text)
    assert found is None or (0 < len(found) <= 255 and found.isascii() and found.isprintable())
