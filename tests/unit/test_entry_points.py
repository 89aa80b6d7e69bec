"""Entry points are read once, and answered as importlib would."""

from __future__ import annotations

from importlib import metadata
from typing import Any, NoReturn

import pytest

from app.entry_points import read_once


def test_later_questions_are_answered_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = [
        {"group": "celery.commands"},
        {"group": "console_scripts", "name": "flower"},
        {"group": "there is no such group"},
    ]
    monkeypatch.setattr(metadata, "entry_points", metadata.entry_points)
    before = [list(metadata.entry_points(**params)) for params in asked]
    assert before[0] and not before[2]
    read_once()

    def read(*_: object, **__: object) -> NoReturn:
        raise AssertionError("packages are read again")

    monkeypatch.setattr(metadata, "distributions", read)
    assert [list(metadata.entry_points(**params)) for params in asked] == before
