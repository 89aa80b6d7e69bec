"""Scripts and styles: our own, and those of installed packages.

Every address contains a digest of the file, so that browsers can cache it for a year and never
use an outdated one. All are served from memory, and large ones are compressed once, in a thread
beside the loop: clients that do not read share the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import mimetypes
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gevent
from flask import Response, request

from app.api.auth.access import Access
from app.console.page import route
from app.errors import NotFound

OWN = Path(__file__).parent / "static"
#: Files of installed packages, by the name that pages use: package and path within.
PACKAGED = {
    "plotly.js": ("plotly", "package_data/plotly.min.js"),
    "swagger-ui.js": ("flask_swagger_ui", "dist/swagger-ui-bundle.js"),
    "swagger-ui.css": ("flask_swagger_ui", "dist/swagger-ui.css"),
}
#: Smaller files are not compressed.
COMPRESSED_BYTES = 4_096
_compressing = threading.Lock()
CACHED = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that browsers request."""

    body: bytes
    #: Changes with the content.
    digest: str
    content_type: str


@route("GET", "/console/assets/<digest>/<path:name>", Access.PUBLIC)
def get_asset(digest: str, name: str) -> Response:
    """A file, if it still has the content that the page refers to."""
    asset = all_assets().get(name)
    if asset is None or asset.digest != digest:
        raise NotFound
    headers = {
        "Cache-Control": CACHED,
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    body = asset.body
    if len(body) >= COMPRESSED_BYTES and request.accept_encodings["gzip"] > 0:
        with _compressing:  # not by each of the first clients at once
            body = compressed(name)
        headers["Content-Encoding"] = "gzip"
    return Response(body, 200, headers, content_type=asset.content_type)


def asset_url(name: str) -> str:
    if name not in all_assets():
        raise LookupError(f"there is no asset {name!r}")
    return f"/console/assets/{all_assets()[name].digest}/{name}"


@cache
def all_assets() -> dict[str, Asset]:
    """Every file by name: names in requests are looked up here, never in the file system."""
    own = {str(path.relative_to(OWN)): path for path in sorted(OWN.rglob("*")) if path.is_file()}
    packaged = {name: packaged_file(*place) for name, place in PACKAGED.items()}
    # One digest for all our own files: they refer to each other and must match.
    digest = digest_of(own.values())
    return {name: asset_of(path, digest) for name, path in own.items()} | {
        name: asset_of(path, digest_of([path])) for name, path in packaged.items()
    }


def asset_of(path: Path, digest: str) -> Asset:
    """A file with its content type."""
    guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    text = guessed.startswith("text/") or guessed == "image/svg+xml"
    body = path.read_bytes()
    return Asset(body, digest, f"{guessed}; charset=utf-8" if text else guessed)


def digest_of(files: Iterable[Path]) -> str:
    mark = hashlib.blake2b(digest_size=8)
    for path in files:
        mark.update(path.name.encode() + b"\0" + path.read_bytes())
    return mark.hexdigest()


def packaged_file(package: str, inside: str) -> Path:
    """A file of a package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise LookupError(f"the package {package} is not installed")
    return Path(spec.origin).parent / inside


@cache
def compressed(name: str) -> bytes:
    """A compressed file. In a thread: the largest takes a tenth of a second."""
    body = all_assets()[name].body
    packed: bytes = gevent.get_hub().threadpool.apply(gzip.compress, (body, 6))
    return packed
