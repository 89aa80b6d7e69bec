"""Signing in by OpenID Connect: to the provider, and back from it.

Beginning is a link and no form: the policy of our pages would stop a form that ends at another
site, also wherever the provider leads on to. It changes nothing but a cookie.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from flask import redirect, request
from werkzeug.wrappers import Response as AnyResponse

from app.api.auth.access import Access
from app.api.auth.oidc_flow import BegunSignIn, ProviderRefused, ProviderUnavailable
from app.api.auth.visitors import HOST_PREFIX, cookie_of
from app.api.services import current_services
from app.console.page import local, route
from app.console.sign_in import BEGINS, begin_session, sign_in_page
from app.errors import Forbidden, NotFound, Unauthenticated
from app.log_ids import CALLER

if TYPE_CHECKING:
    from app.api.auth.oidc import OidcClient

logger = logging.getLogger(__name__)

#: What a browser keeps between leaving and coming back, and for how long.
COOKIE = "fairline_oidc"
COOKIE_SECONDS = 600
#: A longer page to go on to is forgotten: browsers keep no cookies beyond 4 KiB.
MOST_NEXT = 2000
ONCE = ("code", "state", "iss", "error")


@route("GET", "/console/oidc", Access.PUBLIC)
def get_oidc() -> AnyResponse:
    """Send the browser to the provider."""
    client, target = provider(), local(request.args.get("next", "/"))
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        # A link of another site would end the session of whoever follows it.
        return sign_in_page(target)
    try:
        begun, url = client.begin()
    except ProviderUnavailable as error:
        return unavailable(client, target, error)
    response = redirect(url, HTTPStatus.SEE_OTHER)
    path = quote(target)
    value = ".".join((*begun, path if len(path) <= MOST_NEXT else "/"))
    response.set_cookie(
        cookie_name(client),
        value,
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="Lax",
        secure=client.secure,
    )
    return response


@route("GET", "/console/oidc/callback", Access.PUBLIC, BEGINS)
def get_oidc_callback() -> AnyResponse:
    """Where the provider sends the browser back to: begin a session for whom it vouches for."""
    client = provider()
    response = come_back(client)
    # Whatever happened: what is in it is for one use.
    response.delete_cookie(cookie_name(client), secure=client.secure, httponly=True, samesite="Lax")
    return response


def come_back(client: OidcClient) -> AnyResponse:
    """The next page of a browser that the provider sent back."""
    services, target = current_services(), "/"
    assert services.operator_rules is not None
    try:
        begun, target = begun_here(client)
        operator = services.operator_rules.operator_of(client.complete(begun, sent_once()))
        # Known from here on, also where it is refused.
        request.environ[CALLER] = operator.caller()
        caller = services.operator_rules.caller(operator)
    except ProviderUnavailable as error:
        return unavailable(client, target, error)
    except ProviderRefused as error:
        logger.info("sign-in by %s: %s", client.host, error)
        message = f"{client.host} did not sign you in. Try again, or sign in with a key."
        return refused(target, Unauthenticated(message))
    except (Unauthenticated, Forbidden) as error:
        return refused(target, error)
    return begin_session(caller, operator, target, secure=client.secure)


def provider() -> OidcClient:
    """The configured provider."""
    client = current_services().oidc
    if client is None:
        raise NotFound("Sign-in by OpenID Connect is not configured here.")
    return client


def cookie_name(client: OidcClient) -> str:
    return HOST_PREFIX + COOKIE if client.secure else COOKIE


def begun_here(client: OidcClient) -> tuple[BegunSignIn, str]:
    """The sign-in that this browser has begun, and the page to go on to."""
    kept = (cookie_of(request.environ, cookie_name(client)) or "").split(".", 3)
    if len(kept) != 4 or not all(kept):
        raise Unauthenticated(
            "This sign-in was not begun in this browser, or took longer than ten minutes."
            " Please begin again."
        )
    *begun, path = kept
    return BegunSignIn(*begun), local(unquote(path))


def sent_once() -> dict[str, str]:
    """The parameters of the provider's response; one that is there twice is not one of them."""
    return {name: given[0] for name in ONCE if len(given := request.args.getlist(name)) == 1}


def unavailable(client: OidcClient, target: str, error: Exception) -> AnyResponse:
    """The sign-in page, while the provider cannot be used."""
    logger.warning("sign-in by %s is not possible: %s", client.host, error)
    message = f"{client.host} is not available. Try again later, or sign in with a key."
    return sign_in_page(target, HTTPStatus.SERVICE_UNAVAILABLE, provider=message)


def refused(target: str, error: Unauthenticated | Forbidden) -> AnyResponse:
    """The sign-in page for somebody who is not let in."""
    current_services().refused.note(error, request.environ)
    status = HTTPStatus.FORBIDDEN if isinstance(error, Forbidden) else HTTPStatus.UNAUTHORIZED
    return sign_in_page(target, status, provider=error.detail)
