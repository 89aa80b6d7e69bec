"""Forms that change something which exists: of two who save, each changes only what it changed.

A hidden field, ``was``, has what the form showed. Fields that are sent as they were shown stay as
they are, whatever another tab has made of them meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

WAS = "was"


def was_of(typed: Mapping[str, str]) -> str:
    """The value of the hidden field: of a form that was refused, what it showed at first."""
    return typed.get(WAS) or orjson.dumps(dict(typed)).decode()


def changed_names(typed: Mapping[str, str]) -> set[str]:
    """Names of the fields that were changed; all of them if it is not known what was shown."""
    names = typed.keys() - {WAS}
    try:
        was = orjson.loads(typed.get(WAS, ""))
    except orjson.JSONDecodeError:
        was = None
    if not isinstance(was, dict):
        return set(names)
    return {name for name in names | was.keys() if lines(was.get(name)) != lines(typed.get(name))}


def lines(value: object) -> list[str]:
    """A text without its kind of line ends, which browsers change."""
    return str(value or "").strip().splitlines()
