"""What pages and the client of OpenID Connect share: a begun sign-in, and how one fails."""

from __future__ import annotations

from typing import NamedTuple


class BegunSignIn(NamedTuple):
    """The secrets of a sign-in that has begun, which its browser keeps."""

    state: str
    nonce: str
    verifier: str


class ProviderUnavailable(Exception):
    """The provider did not respond, or not as a provider does."""


class ProviderRefused(Exception):
    """The provider vouches for nobody, or not in a way that can be trusted."""
