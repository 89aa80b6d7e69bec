"""HTTP calls to a provider of OpenID Connect: each limited in time and size, and never redirected.

Imported only where a provider is configured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import OAuth2Client

from app.api.auth.oidc_flow import ProviderRefused, ProviderUnavailable
from tasks.scorers.deadline import DeadlinePassed, deadline, hold

#: Longest that one call may take, from the name's resolution to the last byte.
CALL_SECONDS = 5.0
#: Most of a response that is read; documents of providers have a few kilobytes.
MOST_BYTES = 262_144


class LimitedStream(httpx2.SyncByteStream):
    """The body of a response, up to a size."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        left = MOST_BYTES
        for part in self._stream:
            left -= len(part)
            if left < 0:
                raise ProviderUnavailable(f"its response has more than {MOST_BYTES:,} bytes")
            yield part

    def close(self) -> None:
        self._stream.close()


def check_response(response: httpx2.Response) -> None:
    """Called by the client before it reads the body."""
    if response.is_redirect:
        raise ProviderUnavailable("it redirects, which no call to it should")
    if "content-encoding" in response.headers:  # it may be larger than it looks
        raise ProviderUnavailable("its response is compressed, which was not asked for")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = LimitedStream(response.stream)


class ProviderCalls:
    """Calls to one provider, on behalf of one client."""

    def __init__(self, client_id: str, client_secret: str, redirect_uri: str) -> None:
        self._secret = client_secret
        # Read once: certificates take longer to load than the rest of a call to prepare.
        self._tls = httpx2.create_ssl_context()
        self._identity = {
            "client_id": client_id,
            "client_secret": client_secret or None,
            "redirect_uri": redirect_uri,
        }

    def document(self, url: str) -> dict[str, Any]:
        """The JSON object at an address."""
        with self._client() as client:
            response = client.request("GET", url, withhold_token=True)
            if response.status_code != httpx2.codes.OK:
                raise ProviderUnavailable(f"it answered {response.status_code} for {url}")
            found = response.json()
        if not isinstance(found, dict):
            raise ProviderUnavailable(f"{url} is not a JSON object")
        return found

    def token(self, url: str, methods: list[str], code: str, verifier: str) -> dict[str, Any]:
        """The tokens for a code; ``methods``: how the provider lets clients authenticate."""
        method = "client_secret_basic"
        if not self._secret:
            method = "none"
        elif "client_secret_post" in methods and method not in methods:
            method = "client_secret_post"
        with self._client(token_endpoint_auth_method=method) as client:
            try:
                found = client.fetch_token(url, code=code, code_verifier=verifier)
            except OAuthError as error:
                raise ProviderRefused(f"it refused the code: {error.error!r:.60}") from None
        return dict(found)

    def authorization_url(self, url: str, **parameters: str) -> str:
        """Where to send the browser."""
        # For each use: it remembers the token that it fetched last.
        with OAuth2Client(code_challenge_method="S256", verify=self._tls, **self._identity) as made:
            return str(made.create_authorization_url(url, **parameters)[0])

    @contextmanager
    def _client(self, **options: str) -> Iterator[OAuth2Client]:
        """A client for one call; whatever fails in the network is a ``ProviderUnavailable``."""
        client = OAuth2Client(
            **self._identity,
            **options,
            verify=self._tls,
            timeout=CALL_SECONDS,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [check_response]},
        )
        hold(client)
        try:
            with deadline(CALL_SECONDS), client:
                yield client
        except DeadlinePassed:
            raise ProviderUnavailable(f"it took longer than {CALL_SECONDS:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as error:
            # Not chained: the request in it has the client's secret.
            raise ProviderUnavailable(f"{type(error).__name__}: {error!s:.200}") from None
