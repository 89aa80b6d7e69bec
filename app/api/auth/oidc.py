"""Sign-in by OpenID Connect: the authorization code flow with PKCE, at one provider.

What a sign-in must remember until the browser comes back is in a cookie of that browser (state,
nonce and the verifier of PKCE): nothing is stored here, so whoever begins sign-ins without end
fills nothing. A code is good for one use, which the provider guarantees.

The ID token is accepted if one of the provider's keys signed it with an asymmetric algorithm, and
if issuer, audience, authorized party, times and nonce are right. The provider's document and keys
are read once per hour; keys again when a token names an unknown one, at most every ten seconds.

A provider that is slow or down costs others nothing: each call is limited in time, no connection to
the database is held meanwhile, and only so many sign-ins wait for it in one process.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from app.api.auth.oidc_flow import BegunSignIn, ProviderRefused, ProviderUnavailable
from app.api.auth.provider_calls import ProviderCalls
from app.policy.secure_urls import why_not_secure
from app.reads.single_flight import SingleFlight

#: Path that the provider sends browsers back to.
CALLBACK = "/console/oidc/callback"
#: Asymmetric ones: none takes a key that is public for a shared secret.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
#: How long the provider's document and its keys are used before they are read again.
DOCUMENT_SECONDS = 3600.0
#: Keys are not read again within this time, whatever tokens name.
KEYS_AGAIN_SECONDS = 10.0
#: How much the provider's clock may differ from ours.
LEEWAY_SECONDS = 60
#: Sign-ins of one process that wait for the provider at the same time.
MOST_WAITING = 8
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class IdTokenRegistry(JWSRegistry):
    """What the header of an ID token may have: more than joserfc accepts by default."""

    max_header_length = 8192


class OidcClient:
    """A client of one provider."""

    def __init__(
        self, issuer: str, client_id: str, client_secret: str, public_url: str, claim: str
    ) -> None:
        self.issuer = issuer
        #: The name that people know the provider by.
        self.host = urlsplit(issuer).netloc
        self.public_url = public_url
        #: Whether cookies of these pages go over TLS only.
        self.secure = public_url.startswith("https://")
        self._client_id = client_id
        self._claim = claim
        self._calls = ProviderCalls(client_id, client_secret, public_url + CALLBACK)
        self._metadata: SingleFlight[dict[str, Any]] = SingleFlight()
        self._keys: SingleFlight[KeySet] = SingleFlight()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)

    def begin(self) -> tuple[BegunSignIn, str]:
        """A new sign-in, and where to send the browser."""
        begun = BegunSignIn(*(secrets.token_urlsafe(32) for _ in BegunSignIn._fields))
        with self._waiting_for_provider():
            metadata = self._read_metadata()
        scopes = ["openid", "email"]
        # Some providers want to be asked for groups, others refuse a scope that they do not know.
        if self._claim in listed(metadata, "scopes_supported") and self._claim not in scopes:
            scopes.append(self._claim)
        url = self._calls.authorization_url(
            metadata["authorization_endpoint"],
            state=begun.state,
            nonce=begun.nonce,
            code_verifier=begun.verifier,
            scope=" ".join(scopes),
        )
        return begun, url

    def complete(self, begun: BegunSignIn, sent: Mapping[str, str]) -> dict[str, Any]:
        """The claims of whoever the provider vouches for, by the parameters that the browser
        brought back."""
        if not hmac.compare_digest(begun.state.encode(), sent.get("state", "").encode()):
            raise ProviderRefused("the state is not that of this browser")
        with self._waiting_for_provider():
            metadata = self._read_metadata()
            self._check_issuer(metadata, sent.get("iss"))
            if "code" not in sent:
                raise ProviderRefused(f"it answered {sent.get('error', '')!r:.60}")
            methods = listed(metadata, "token_endpoint_auth_methods_supported")
            endpoint = metadata["token_endpoint"]
            token = self._calls.token(endpoint, methods, sent["code"], begun.verifier)
            return self._check_token(token, begun.nonce)

    @contextmanager
    def _waiting_for_provider(self) -> Iterator[None]:
        if not self._waiting.acquire(blocking=False):
            raise ProviderUnavailable("too many sign-ins wait for it")
        try:
            yield
        finally:
            self._waiting.release()

    def _check_issuer(self, metadata: Mapping[str, Any], sent: str | None) -> None:
        """RFC 9207: a response of another provider is not taken for one of this provider."""
        required = metadata.get("authorization_response_iss_parameter_supported") is True
        if sent != self.issuer and (required or sent is not None):
            raise ProviderRefused(f"the response is of another issuer: {sent!r:.200}")

    def _check_token(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        signed = token.get("id_token")
        if not isinstance(signed, str):
            raise ProviderRefused("there is no ID token")
        try:
            verified = self._verify(signed)
            claims = CodeIDToken(
                verified.claims,
                verified.header,
                {
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                },
                {
                    "nonce": nonce,
                    "client_id": self._client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProviderRefused(f"the ID token is not valid: {error!s:.200}") from None
        return dict(claims)

    def _verify(self, signed: str) -> jwt.Token:
        registry = IdTokenRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        keys = self._keys.read(self._fetch_keys, DOCUMENT_SECONDS)
        try:
            return jwt.decode(signed, keys, registry=registry)
        except (InvalidKeyIdError, BadSignatureError):  # keys without an id may have changed
            keys = self._keys.read(self._fetch_keys, KEYS_AGAIN_SECONDS)
            return jwt.decode(signed, keys, registry=registry)

    def _read_metadata(self) -> dict[str, Any]:
        return self._metadata.read(self._fetch_metadata, DOCUMENT_SECONDS)

    def _fetch_metadata(self) -> dict[str, Any]:
        found = self._calls.document(get_well_known_url(self.issuer, external=True))
        if found.get("issuer") != self.issuer:
            raise ProviderUnavailable(f"it calls itself {found.get('issuer')!r:.200}")
        for name in ENDPOINTS:
            url = found.get(name)
            # A query is allowed there.
            if not isinstance(url, str) or why_not_secure(url.partition("?")[0]):
                raise ProviderUnavailable(f"its {name} is not a secure URL")
        return found

    def _fetch_keys(self) -> KeySet:
        found = self._calls.document(self._read_metadata()["jwks_uri"])
        try:
            return KeySet.import_key_set({"keys": listed(found, "keys", dict)})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderUnavailable(f"its keys cannot be read: {error!s:.200}") from None


def listed(document: Mapping[str, Any], name: str, kind: type = str) -> list[Any]:
    """The items of a list in a provider's document; other things that are in its place are none."""
    found = document.get(name)
    return [one for one in found if isinstance(one, kind)] if isinstance(found, list) else []
