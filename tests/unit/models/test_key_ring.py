"""The codec of encrypted values: what was encrypted for one place is read there only."""

from __future__ import annotations

import secrets
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.encryption.key_ring import (
    PREFIX,
    ContentKind,
    DecryptionError,
    EncryptionKey,
    KeyRing,
    Place,
    key_id_of,
    parse_keys,
)
from models.encryption.values import ring_of

KEYS = tuple(EncryptionKey(name, secrets.token_bytes(32)) for name in ("new", "old"))
RING, OLD = KeyRing(KEYS), KeyRing(KEYS[1:])

places = st.builds(Place, st.integers(1, 2**40), st.uuids().map(str), st.sampled_from(ContentKind))
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts, places)
def test_a_text_is_read_where_it_was_written(text: str, place: Place) -> None:
    stored = RING.encrypt_text(text, place)
    assert RING.decrypt_text(stored, place) == text
    assert stored.isascii() and '"' not in stored and "\\" not in stored
    assert stored.startswith(f"{PREFIX}new:")
    # A nonce each: the same text is never stored alike.
    assert RING.encrypt_text(text, place) != stored


@given(st.binary(max_size=5_000), places)
def test_a_blob_is_read_where_it_was_written(data: bytes, place: Place) -> None:
    stored = RING.encrypt(data, place)
    assert RING.decrypt(stored, place) == data
    assert key_id_of(stored) == "new"
    assert len(data) < 8 or data not in stored


@given(texts, places, st.data())
def test_any_changed_character_is_an_error(text: str, place: Place, data: st.DataObject) -> None:
    stored = RING.encrypt_text(text, place)
    at = data.draw(st.integers(0, len(stored) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda one: one != stored[at]))
    with pytest.raises(DecryptionError):
        RING.decrypt_text(stored[:at] + other + stored[at + 1 :], place)


@given(st.binary(), places, st.data())
def test_any_flipped_byte_is_an_error(content: bytes, place: Place, data: st.DataObject) -> None:
    stored = bytearray(RING.encrypt(content, place))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DecryptionError):
        RING.decrypt(bytes(stored), place)


@given(texts, places, st.data())
def test_a_cut_value_is_an_error(text: str, place: Place, data: st.DataObject) -> None:
    stored = RING.encrypt_text(text, place)
    with pytest.raises(DecryptionError):
        RING.decrypt_text(stored[: data.draw(st.integers(0, len(stored) - 1))], place)


@given(texts, places, places)
def test_another_place_is_an_error(text: str, place: Place, other: Place) -> None:
    stored, blob = RING.encrypt_text(text, place), RING.encrypt(text.encode(), place)
    moved = [place._replace(**{name: getattr(other, name)}) for name in Place._fields]
    for wrong in (one for one in moved if one != place):
        with pytest.raises(DecryptionError):
            RING.decrypt_text(stored, wrong)
        with pytest.raises(DecryptionError):
            RING.decrypt(blob, wrong)


@given(texts, places)
def test_all_keys_decrypt_and_the_first_encrypts(text: str, place: Place) -> None:
    stored = OLD.encrypt_text(text, place)
    assert RING.decrypt_text(stored, place) == text
    assert RING.encrypt_text(text, place).startswith(RING.prefix)
    with pytest.raises(DecryptionError, match="'new', which is not in FAIRLINE_ENCRYPTION_KEYS"):
        OLD.decrypt_text(RING.encrypt_text(text, place), place)


def test_another_key_of_the_same_id_is_named_in_the_error() -> None:
    place = Place(1, "a", ContentKind.RESULT)
    other = KeyRing([EncryptionKey("new", secrets.token_bytes(32))])
    with pytest.raises(DecryptionError, match="The result does not decrypt with the key 'new'"):
        other.decrypt_text(RING.encrypt_text("x", place), place)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(1, 9))
def test_digests_of_tenants_and_keys_differ(digest: bytes, one: int, two: int) -> None:
    assert (RING.tenant_digest(one, digest) == RING.tenant_digest(two, digest)) == (one == two)
    assert RING.tenant_digest(one, digest) != RING.tenant_digest(one, digest, "old")
    assert RING.tenant_digest(one, digest, "old") == OLD.tenant_digest(one, digest)


def test_keys_are_read_from_a_setting() -> None:
    secret = b64encode(bytes(range(32))).decode()
    url_safe = secret.replace("+", "-").replace("/", "_")
    keys = parse_keys(f"2026-11:{secret},\n 2025:{url_safe} ")
    assert [key.id for key in keys] == ["2026-11", "2025"]
    assert {key.secret for key in keys} == {bytes(range(32))}
    assert "2026-11" in repr(keys) and secret not in repr(keys)
    assert ring_of("") is None and ring_of(" , ") is None


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("secret", "key 1 must be an id, a colon and 32 bytes as base64"),
        (f"a:{b64encode(bytes(32)).decode()},b c:x", "key 2 must be"),
        ("a:c2hvcnQ=", "key a has 5 bytes instead of 32"),
        ("a:c2hvcnQ", "key a is not base64"),
        (",".join([f"a:{b64encode(bytes(32)).decode()}"] * 2), "two keys have the same id"),
    ],
)
def test_a_wrong_setting_is_refused_without_repeating_it(setting: str, error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        parse_keys(setting)
    assert "c2hvcnQ" not in str(raised.value)
