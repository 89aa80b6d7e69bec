"""After something was done: where the browser goes, and what it is told there.

Apart from the shell, which knows all pages: the pages need this.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from flask import redirect
from werkzeug.wrappers import Response

NOTICE_COOKIE = "fairline_notice"
MOST_NOTICE = 300


def done(back_to: str, notice: str) -> Response:
    """The page again, and what happened."""
    response = redirect(local(back_to), HTTPStatus.SEE_OTHER)
    response.set_cookie(
        NOTICE_COOKIE, quote(notice[:MOST_NOTICE]), max_age=30, httponly=True, samesite="Lax"
    )
    return response


def local(target: str, otherwise: str = "/") -> str:
    """A path of this site, whatever was asked for."""
    safe = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if safe and target.isprintable() else otherwise
