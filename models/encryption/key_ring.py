"""Key ring: encrypts values for one row each, and decrypts what any of its keys encrypted.

The data key of a row is derived from a configured key, the tenant and the row's id; the kind of the
value is authenticated with it. So a ciphertext that is moved to another tenant, job or column does
not decrypt, and no data key is used often enough for random nonces to repeat.

An encrypted value names its key: ``fairline-encrypted:1:<key id>:`` and then nonce, ciphertext and
tag, as base64 in texts and as bytes in blobs. In a JSON column it is a JSON string. What does not
begin so was stored before encryption was switched on, and is returned as it is.

Pure but for its randomness. ``cryptography`` is imported where there are keys, and nowhere else.
"""

from __future__ import annotations

import binascii
import hmac
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from models.store.errors import DescribedError

#: How every encrypted value begins; with the version of the format.
PREFIX = "fairline-encrypted:1:"
#: The same for texts and for JSON.
PREFIXES = (PREFIX, f'"{PREFIX}')
KEY_BYTES = 32
NONCE_BYTES = 12
#: Tenants whose keys are kept derived; then all are derived again.
MOST_TENANTS = 10_000
#: In errors: names of keys only, never a part of one.
KEYS_SETTING = "FAIRLINE_ENCRYPTION_KEYS"

_KEY = re.compile(r"([A-Za-z0-9_-]{1,32}):([A-Za-z0-9+/=_-]+)")
_HEAD = re.compile(rb"fairline-encrypted:1:([A-Za-z0-9_-]{1,32}):")


class DecryptionError(DescribedError):
    """A stored value cannot be decrypted."""


class ContentKind(StrEnum):
    """What a value is: one of a kind cannot stand for one of another."""

    PAYLOAD = "payload"
    RESULT = "result"
    ERROR = "error"
    LOG = "log"
    TRACEBACK = "traceback"
    CHECKPOINT = "checkpoint"
    RATIONALE = "rationale"
    SCHEDULE = "schedule"
    #: Why a tick of a schedule was skipped.
    REASON = "reason"


class Place(NamedTuple):
    """Where a value is stored: whose it is, the job or schedule, and what it is."""

    tenant_id: int
    id: str
    kind: ContentKind


class EncryptionKey(NamedTuple):
    """A configured key."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"EncryptionKey({self.id!r})"


def parse_keys(text: str) -> tuple[EncryptionKey, ...]:
    """``id:base64,id:base64``; ValueError if that is not what it is. Repeats no part of a key."""
    keys = []
    for place, part in enumerate(filter(None, re.split(r"[\s,]+", text)), 1):
        found = _KEY.fullmatch(part)
        if found is None:
            raise ValueError(f"key {place} must be an id, a colon and 32 bytes as base64")
        try:
            secret = b64decode(found[2].replace("-", "+").replace("_", "/"), validate=True)
        except binascii.Error:
            raise ValueError(f"key {found[1]} is not base64") from None
        if len(secret) != KEY_BYTES:
            raise ValueError(f"key {found[1]} has {len(secret)} bytes instead of {KEY_BYTES}")
        keys.append(EncryptionKey(found[1], secret))
    if len({key.id for key in keys}) < len(keys):
        raise ValueError("two keys have the same id")
    return tuple(keys)


def is_encrypted(stored: str) -> bool:
    """Whether a text, or the text of a JSON document, is an encrypted value."""
    return stored.startswith(PREFIXES)


def key_id_of(stored: bytes) -> str | None:
    """The id of the key that encrypted a value, None if none did."""
    found = _HEAD.match(stored)
    return found[1].decode() if found else None


class KeyRing:
    """Encrypts by its first key and decrypts by all of them. Safe to share between threads."""

    def __init__(self, keys: Sequence[EncryptionKey]) -> None:
        # All of it now: a watchdog writes from a native thread, where nothing is to be imported.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self._cipher: Callable[[bytes], Any] = AESGCM
        self._derivation: Callable[[bytes], Any] = partial(HKDF, SHA256(), KEY_BYTES, None)
        self._invalid: type[Exception] = InvalidTag
        self._keys = {key.id: key.secret for key in keys}
        self._tenant_keys: dict[tuple[str, int], bytes] = {}
        #: The key that encrypts.
        self.first = keys[0].id
        self.ids = tuple(self._keys)

    @property
    def prefix(self) -> str:
        """How texts begin that the first key encrypted."""
        return f"{PREFIX}{self.first}:"

    def encrypt(self, data: bytes, place: Place) -> bytes:
        """The value for a blob."""
        return self.prefix.encode() + self._sealed(data, place)

    def encrypt_text(self, text: str, place: Place) -> str:
        """The value for a text column, or for a JSON column between quotes."""
        sealed = self._sealed(text.encode(), place)
        return self.prefix + b64encode(sealed).decode()

    def decrypt(self, stored: bytes, place: Place) -> bytes:
        """What was encrypted for this very place."""
        key_id = known_form(key_id_of(stored), place)
        return self._opened(key_id, stored[len(PREFIX) + len(key_id) + 1 :], place)

    def decrypt_text(self, stored: str, place: Place) -> str:
        """What was encrypted for this very place."""
        head, _, sealed = stored.rpartition(":")
        key_id = known_form(key_id_of(f"{head}:".encode()), place)
        try:
            data = b64decode(sealed, validate=True)
        except ValueError:
            raise damaged(key_id, place) from None
        # Of the last characters base64 ignores some bits.
        if not sealed.endswith(b64encode(data[len(data) // 3 * 3 :]).decode()):
            raise damaged(key_id, place)
        return self._opened(key_id, data, place).decode()

    def tenant_digest(self, tenant_id: int, digest: bytes, key_id: str | None = None) -> bytes:
        """A digest of content that cannot be computed without the key."""
        key = self._tenant_key(key_id or self.first, tenant_id)
        return hmac.digest(key, b"digest:" + digest, "sha256")

    def _sealed(self, data: bytes, place: Place) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        cipher = self._cipher(self._row_key(self.first, place))
        sealed: bytes = cipher.encrypt(nonce, data, authenticated(self.first, place))
        return nonce + sealed

    def _opened(self, key_id: str, sealed: bytes, place: Place) -> bytes:
        if key_id not in self._keys:
            raise missing_key(key_id, place)
        cipher = self._cipher(self._row_key(key_id, place))
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            data: bytes = cipher.decrypt(nonce, rest, authenticated(key_id, place))
        except (self._invalid, ValueError):  # too short for a nonce
            raise damaged(key_id, place) from None
        return data

    def _row_key(self, key_id: str, place: Place) -> bytes:
        return hmac.digest(
            self._tenant_key(key_id, place.tenant_id), f"row:{place.id}".encode(), "sha256"
        )

    def _tenant_key(self, key_id: str, tenant_id: int) -> bytes:
        known = self._tenant_keys.get((key_id, tenant_id))
        if known is not None:
            return known
        derived = self._derivation(f"fairline tenant {tenant_id}".encode())
        key: bytes = derived.derive(self._keys[key_id])
        if len(self._tenant_keys) >= MOST_TENANTS:
            self._tenant_keys.clear()
        self._tenant_keys[key_id, tenant_id] = key
        return key


def authenticated(key_id: str, place: Place) -> bytes:
    """What must be the same for a value to decrypt. No part can contain a colon."""
    return f"{PREFIX}{key_id}:{place.tenant_id}:{place.id}:{place.kind}".encode()


def known_form(key_id: str | None, place: Place) -> str:
    if key_id is None:
        raise DecryptionError(f"The {place.kind} is encrypted in a form that is not known.")
    return key_id


def missing_key(key_id: str, place: Place) -> DecryptionError:
    return DecryptionError(
        f"The {place.kind} is encrypted with the key {key_id!r}, which is not in {KEYS_SETTING}."
    )


def damaged(key_id: str, place: Place) -> DecryptionError:
    return DecryptionError(
        f"The {place.kind} does not decrypt with the key {key_id!r}: the key of that id is another"
        " one, or the stored value was changed or moved."
    )
