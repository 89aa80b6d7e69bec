"""The job types that a tenant may submit."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.errors import Forbidden

#: Names of job types; None: all.
AllowedTypes = Collection[str] | None

#: Types named in an error.
MOST_NAMED = 50


def require_types(allowed: AllowedTypes, names: Iterable[str]) -> None:
    """Refuse types that a tenant may not submit."""
    if allowed is not None:
        for name in names:
            if name not in allowed:
                raise forbidden_type(name, allowed)


def forbidden_type(name: str, allowed: Iterable[str]) -> Forbidden:
    """The error of a type that a tenant may not submit."""
    listed = ", ".join(sorted(allowed)[:MOST_NAMED]) or "none"
    return Forbidden(f"Your tenant may not submit jobs of the type {name}; it may: {listed}.")
