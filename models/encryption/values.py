"""Values as they are stored: encrypted if keys are configured, else as they are.

Called where a value enters or leaves the database or the blob store. Without keys each is a
comparison. What was stored before encryption was switched on is returned as it is.
"""

from __future__ import annotations

import json
from typing import Any

from models.encryption.key_ring import (
    PREFIX,
    KeyRing,
    Place,
    is_encrypted,
    key_id_of,
    missing_key,
    parse_keys,
)
from models.settings import DatabaseSettings, exit_if_invalid, read_settings


def ring_of(text: str) -> KeyRing | None:
    """The keys of a setting; ValueError if they are none."""
    keys = parse_keys(text)
    return KeyRing(keys) if keys else None


with exit_if_invalid("encryption_keys"):
    _ring = ring_of(read_settings(DatabaseSettings).encryption_keys.get_secret_value())


def key_ring() -> KeyRing | None:
    """The keys of this process; None if nothing is to be encrypted."""
    return _ring


def use_key_ring(ring: KeyRing | None) -> KeyRing | None:
    """Use other keys than the configured ones, for tests and measurements; those before."""
    global _ring
    before, _ring = _ring, ring
    return before


def encrypt_text(text: str | None, place: Place) -> str | None:
    """For a text column."""
    ring = key_ring()
    return text if ring is None or text is None else ring.encrypt_text(text, place)


def encrypt_json(document: str, place: Place) -> str:
    """For a JSON column; ``document`` is JSON text."""
    ring = key_ring()
    return document if ring is None else f'"{ring.encrypt_text(document, place)}"'


def encrypt_json_if_any(document: str | None, place: Place) -> str | None:
    """For a JSON column that may be null."""
    return None if document is None else encrypt_json(document, place)


def encrypt_blob(data: bytes, place: Place) -> bytes:
    """For the blob store."""
    ring = key_ring()
    return data if ring is None else ring.encrypt(data, place)


def decrypt_text(stored: str, place: Place) -> str:
    """Of a text column; DecryptionError if its key is not configured or it was changed."""
    if not stored.startswith(PREFIX):
        return stored
    ring = key_ring()
    if ring is None:
        raise missing_key(key_id_of(stored.encode()) or "", place)
    return ring.decrypt_text(stored, place)


def decrypt_json(stored: str, place: Place) -> str:
    """Of a JSON column, read as text."""
    return decrypt_text(stored[1:-1], place) if is_encrypted(stored) else stored


def decrypt_value(stored: Any, place: Place) -> Any:
    """Of a JSON column that the driver has parsed."""
    if isinstance(stored, str) and stored.startswith(PREFIX):
        return json.loads(decrypt_text(stored, place))
    return stored


def decrypt_blob(stored: bytes, place: Place) -> bytes:
    """Of the blob store."""
    key_id = key_id_of(stored)
    if key_id is None:
        return stored
    ring = key_ring()
    if ring is None:
        raise missing_key(key_id, place)
    return ring.decrypt(stored, place)


def cut_text_sql(column: str, characters: int) -> str:
    """An SQL expression: the beginning of a text column; of an encrypted one the whole."""
    return cut_sql(column, PREFIX, characters)


def cut_json_sql(column: str, characters: int) -> str:
    """The same of a JSON column."""
    return cut_sql(f"{column}::text", f'"{PREFIX}', characters)


def cut_sql(text: str, prefix: str, characters: int) -> str:
    cut = f"left({text}, {characters})"
    return f"CASE WHEN starts_with({text}, '{prefix}') THEN {text} ELSE {cut} END"


def encrypt_digest(digest: bytes, tenant_id: int) -> bytes:
    """A digest of content, which nobody can compute from a guess without the key."""
    ring = key_ring()
    return digest if ring is None else ring.tenant_digest(tenant_id, digest)


def digest_matches(stored: bytes, digest: bytes, tenant_id: int) -> bool:
    """Whether a stored digest is that of the same content, under whichever key it was written."""
    ring = key_ring()
    if ring is None or bytes(stored) == digest:
        return bytes(stored) == digest
    return any(bytes(stored) == ring.tenant_digest(tenant_id, digest, key) for key in ring.ids)
