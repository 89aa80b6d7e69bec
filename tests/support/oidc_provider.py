"""A provider of OpenID Connect on this machine: discovery, keys, authorization, tokens.

It checks what a provider has to check (client, redirect URI, PKCE, that a code is used once), and
misbehaves on demand.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID, CLIENT_SECRET = "fairline-test", "not-a-secret"
#: Longer than a client waits.
PATIENCE_SECONDS = 20.0
HUGE_BYTES = 5_000_000


class OidcProvider:
    """The provider, and what it is told to do."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), ProviderHandler)
        self._server.daemon_threads = True
        self._server.provider = self  # type: ignore[attr-defined]  # for the handler
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.stopping = threading.Event()
        self.key = RSAKey.generate_key(2048, {"kid": "first"})
        self.reset()

    def reset(self) -> None:
        """Behave."""
        #: Keys that are published; the last one signs.
        self.keys = [self.key]
        #: Who signs in, and changes to the ID token's other claims; None leaves one out.
        self.user: dict[str, Any] = {"sub": "alice"}
        self.claims: dict[str, Any] = {}
        #: Makes the ID token, in place of signing it.
        self.sign: Callable[[dict[str, Any]], object] = self.signed
        #: By path: what is done in place of an answer.
        self.faults: dict[str, Callable[[ProviderHandler], None]] = {}
        #: Changes to the discovery document.
        self.metadata: dict[str, Any] = {}
        #: Changes to the parameters that browsers bring back; None leaves one out.
        self.brought: dict[str, str | None] = {}
        self.secret: str | None = CLIENT_SECRET
        #: Requests by path, and the codes that were not used.
        self.asked: Counter[str] = Counter()
        self.codes: dict[str, dict[str, str]] = {}

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.keys[-1].kid}, claims, self.keys[-1])

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "scopes_supported": ["openid", "email", "groups"],
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.metadata,
        }

    def authorize(self, url: str) -> str:
        """Where a browser that opens this URL is sent, when its user agrees."""
        parts = urlsplit(url)
        connection = HTTPConnection(parts.netloc, timeout=10)
        try:
            connection.request("GET", f"{parts.path}?{parts.query}")
            response = connection.getresponse()
            assert response.status == 302, response.read()
            return str(response.headers["Location"])
        finally:
            connection.close()

    def grant(self, asked: Mapping[str, str]) -> str:
        """Where to send the browser back to, with a code."""
        assert asked["response_type"] == "code" and asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256" and "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = dict(asked)
        given = {"code": code, "state": asked["state"], **self.brought}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        return f"{asked['redirect_uri']}?{query}"

    def exchange(self, form: Mapping[str, str], authorization: str) -> dict[str, Any]:
        """The tokens for a code, or the error."""
        if self.secret is not None:
            pair = f"{CLIENT_ID}:{self.secret}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
            posted = (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, self.secret)
            if authorization != basic and not posted:
                return {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        if (
            asked is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != asked["redirect_uri"]
            or create_s256_code_challenge(form["code_verifier"]) != asked["code_challenge"]
        ):
            return {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "nonce": asked["nonce"],
            "iat": now,
            "exp": now + 300,
            **self.user,
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return {"access_token": "at", "token_type": "Bearer", "id_token": self.sign(claims)}

    def __enter__(self) -> OidcProvider:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()


class ProviderHandler(BaseHTTPRequestHandler):
    """One request to the provider."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self._counted(parts.path):
            return
        if parts.path == "/.well-known/openid-configuration":
            self.answer(200, self.provider.document())
        elif parts.path == "/keys":
            self.answer(200, KeySet(list(self.provider.keys)).as_dict())
        elif parts.path == "/authorize":
            back = self.provider.grant(dict(parse_qsl(parts.query)))
            self.answer(302, {}, {"Location": back})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self._counted(urlsplit(self.path).path):
            authorization = self.headers.get("Authorization", "")
            found = self.provider.exchange(dict(parse_qsl(body)), authorization)
            self.answer(400 if "error" in found else 200, found)

    @property
    def provider(self) -> OidcProvider:
        return self.server.provider  # type: ignore[attr-defined,no-any-return]

    def _counted(self, path: str) -> bool:
        """Count the request; whether a fault answered it."""
        self.provider.asked[path] += 1
        fault = self.provider.faults.get(path)
        if fault is not None:
            self.close_connection = True
            fault(self)
        return fault is not None

    def answer(
        self, status: int, document: object, headers: Mapping[str, str] | None = None
    ) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


# Faults.


def hang(handler: ProviderHandler) -> None:
    handler.provider.stopping.wait(PATIENCE_SECONDS)


def drip(handler: ProviderHandler) -> None:
    """A byte at a time, for as long as the client listens."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    ends_at = time.monotonic() + PATIENCE_SECONDS
    with suppress(OSError):  # the client has left
        while time.monotonic() < ends_at and not handler.provider.stopping.wait(0.05):
            handler.wfile.write(b" ")


def padded(handler: ProviderHandler) -> bytes:
    """A document that would be accepted if it were not so long."""
    return json.dumps(handler.provider.document()).encode() + b" " * HUGE_BYTES


def huge(handler: ProviderHandler) -> None:
    with suppress(OSError):  # the client has left
        handler.answer(200, padded(handler))


def bomb(handler: ProviderHandler) -> None:
    handler.answer(200, gzip.compress(padded(handler)), {"Content-Encoding": "gzip"})


def broken(handler: ProviderHandler) -> None:
    handler.answer(500, {"error": "server_error"})


def not_json(handler: ProviderHandler) -> None:
    handler.answer(200, b"<html>Welcome to the hotel</html>")


def nested(handler: ProviderHandler) -> None:
    handler.answer(200, b"[" * 100_000)


def a_list(handler: ProviderHandler) -> None:
    handler.answer(200, [1, 2])


def leads_elsewhere(handler: ProviderHandler) -> None:
    """A redirect to the same document, which a client that follows it would accept."""
    handler.answer(307, {}, {"Location": f"{handler.path}?again"})


# ID tokens that are no ID tokens.


def in_parts(*parts: object) -> str:
    encoded = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in encoded)


def unsigned(provider: OidcProvider) -> Callable[[dict[str, Any]], str]:
    header = {"alg": "none", "kid": provider.key.kid}
    return lambda claims: f"{in_parts(header, claims)}."


def with_public_key_as_secret(provider: OidcProvider) -> Callable[[dict[str, Any]], str]:
    def sign(claims: dict[str, Any]) -> str:
        signed = in_parts({"alg": "HS256", "kid": provider.key.kid}, claims)
        secret = provider.key.as_pem(private=False)
        return f"{signed}.{in_parts(hmac.digest(secret, signed.encode(), hashlib.sha256))}"

    return sign


def with_other_key(provider: OidcProvider) -> Callable[[dict[str, Any]], str]:
    other = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "kid": provider.key.kid}
    return lambda claims: jwt.encode(header, claims, other)


def with_unknown_key(provider: OidcProvider) -> Callable[[dict[str, Any]], str]:
    return lambda claims: jwt.encode({"alg": "RS256", "kid": "nobody"}, claims, provider.key)


def with_key_in_header(provider: OidcProvider) -> Callable[[dict[str, Any]], str]:
    own = RSAKey.generate_key(2048, {"kid": "own"})
    header = {"alg": "RS256", "kid": "own", "jwk": own.as_dict(private=False)}
    return lambda claims: jwt.encode(header, claims, own)
