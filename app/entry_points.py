"""Reads the entry points of the installed packages once, so that a process starts sooner.

gevent asks for them at each of 25 steps of its patching, in case a package wants to hear of it, and
each time the metadata of every installed package is read: a fifth of a second.
"""

from __future__ import annotations

from importlib import metadata


def read_once() -> None:
    """Answer every later question for entry points by those of now."""
    metadata.entry_points = metadata.entry_points().select
