"""``/docs``: the API to read and to try, by Swagger UI from an installed package.

Nothing comes from elsewhere. A key that is entered there stays in the page and is gone with it.
"""

from __future__ import annotations

from flask import Blueprint, render_template

from app.api.auth.access import Access, open_to

docs = Blueprint("docs", __name__)


@docs.get("/docs")
@open_to(Access.PUBLIC)
def get_docs() -> str:
    return render_template("console/docs.html")
