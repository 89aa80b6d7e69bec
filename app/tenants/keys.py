"""API keys: ``fair_<short>_<long>``. The short part finds the row, the long part is the secret.

Only a SHA-256 digest of the whole key is stored. A slow hash would protect passwords that
people choose; 190 random bits need none, and every request would pay for it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from typing import NamedTuple

SHORT_CHARACTERS = 8
LONG_CHARACTERS = 32
SHORT_ALPHABET = string.ascii_lowercase + string.digits
LONG_ALPHABET = string.ascii_letters + string.digits

#: The short part alone: the name of a key.
SHORT = re.compile(rf"[a-z0-9]{{{SHORT_CHARACTERS}}}")
#: RFC 6750; the name of the scheme is not case-sensitive.
BEARER = re.compile(
    rf"[Bb][Ee][Aa][Rr][Ee][Rr] +"
    rf"(fair_([a-z0-9]{{{SHORT_CHARACTERS}}})_[A-Za-z0-9]{{{LONG_CHARACTERS}}})"
)


class PresentedKey(NamedTuple):
    """A well-formed key as a caller sent it, not known to exist."""

    #: The short part.
    id: str
    digest: bytes


def new_key() -> str:
    """A random key."""
    short = _random(SHORT_ALPHABET, SHORT_CHARACTERS)
    return f"fair_{short}_{_random(LONG_ALPHABET, LONG_CHARACTERS)}"


def presented(key: str) -> PresentedKey | None:
    """The key as it is compared, or None if it is malformed."""
    return parse_authorization(f"Bearer {key}")


def parse_authorization(header: str) -> PresentedKey | None:
    """The key in an ``Authorization`` header, or None if it has no well-formed one."""
    found = BEARER.fullmatch(header)
    if found is None:
        return None
    return PresentedKey(found[2], hashlib.sha256(found[1].encode()).digest())


def same_digest(stored: bytes, sent: bytes) -> bool:
    """Whether two digests are equal, in constant time."""
    return hmac.compare_digest(stored, sent)


def _random(alphabet: str, characters: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(characters))
