"""Texts of jobs and libraries on their way into a row: storable, bounded, and without secrets."""

from __future__ import annotations

import os
import re
from functools import cache

from tasks.config import task_settings

HIDDEN = "[hidden]"
#: What looks like a secret: a mark that is searched for first, the pattern, what it becomes.
SECRETS = (
    ("fair_", re.compile(r"fair_[a-z0-9]{8}_[A-Za-z0-9]+"), HIDDEN),
    ("sk-", re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), HIDDEN),
    ("earer ", re.compile(r"\b([Bb])earer +[^\s'\"]+"), rf"\1earer {HIDDEN}"),
    (
        "",
        re.compile(
            r"\b((?:pass(?:word|wd)|pwd)['\"]?\s*[=:]|(?:secret|token|api_?key)['\"]?\s*=)"
            r"(\s*['\"]?)[^\s'\",;&)}]{4,}",
            re.IGNORECASE,
        ),
        rf"\1\2{HIDDEN}",
    ),
    ("://", re.compile(r"://[^\s/@:'\"]*:[^\s/@'\"]+@"), f"://{HIDDEN}@"),
)
#: Settings of this process whose values are hidden wherever they turn up.
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
#: Shorter ones may be words.
SECRET_CHARACTERS = 12
#: A secret that begins before the end of a text and ends behind it is recognised up to here.
BEYOND = 500


def plain_text(value: object, characters: int) -> str:
    """``str(value)``, limited to what PostgreSQL can store and what its reader may see."""
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - its __str__ may raise anything
        text = f"({type(error).__name__} while reading the message)"
    text = text[: characters + BEYOND].replace("\x00", "")
    return without_secrets(text.encode("utf-8", "replace").decode())[:characters]


def without_secrets(text: str) -> str:
    """The text, with what is or looks like a secret replaced."""
    for secret in own_secrets():
        text = text.replace(secret, HIDDEN)
    for mark, pattern, shown in SECRETS:
        if mark in text:
            text = pattern.sub(shown, text)
    return text


@cache
def own_secrets() -> tuple[str, ...]:
    """Values of this process's settings that are secrets, the longest first."""
    found = {value for name, value in os.environ.items() if SECRET_NAMES.search(name)}
    # It may come from a file of settings.
    found.add(task_settings().claude_api_key.get_secret_value())
    secrets = (value for value in found if len(value) >= SECRET_CHARACTERS)
    return tuple(sorted(secrets, key=len, reverse=True))
