"""Array literals: a column of a group as one parameter.

psycopg2 would write a list as ``ARRAY['…', '…']``, each element quoted by itself, and the server
would read each as an expression. For a group of 500 both took longer than writing the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


def plain_array(values: Iterable[float | str]) -> str:
    """Of numbers, truth values or ids: nothing in them means anything to the array's parser."""
    return "{" + ",".join(map(str, values)) + "}"


def text_array(values: Iterable[str | None]) -> str:
    """Of any texts; None is NULL."""
    return "{" + ",".join(["NULL" if text is None else quoted(text) for text in values]) + "}"


def moment_array(values: Iterable[datetime | None]) -> str:
    """Of times with their zone; None is NULL."""
    return text_array(None if moment is None else moment.isoformat() for moment in values)


def quoted(text: str) -> str:
    """An element that is taken as it is: ``NULL``, braces, commas and spaces too."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
