"""Escapes untrusted text for a model.

An application is sent as one JSON document between two tags that it cannot close itself: every
angle bracket inside is escaped. This does not stop a model from being persuaded by what it reads,
which is what the rubric's rules and the validated answer are for.
"""

from __future__ import annotations

import json
import re

from tasks.scorers.protocol import ApplicationText

# Zero-width joiner and non-joiner (U+200C, U+200D) and the basic variation selectors stay: emoji
# and several scripts are spelled with them.
_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters, except tab and line ends
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"  # zero width, and direction overrides
    "\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff"  # lone surrogates, which no UTF-8 can carry
    "\U000e0000-\U000e0fff"  # tags and supplementary variation selectors
    "]+"
)
#: Control characters that end a line or a column: the words they separate stay separate.
_SEPARATORS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


def visible(text: str) -> str:
    """The text without invisible characters; those that separate words become spaces."""
    return _INVISIBLE.sub("", _SEPARATORS.sub(" ", text))


def plain(text: str) -> str:
    """The visible text in one line: every run of white space is one space."""
    return " ".join(visible(text).split())


def as_data(application: ApplicationText) -> str:
    """The application as a delimited block of data for a user message.

    The candidate's name is left out: no criterion needs it, and it could bias the marks.
    """
    document = json.dumps(
        {"role": application.role, "application": application.payload},
        ensure_ascii=False,
        sort_keys=True,
        indent=1,
    )
    # Inside JSON an angle bracket can only occur in a string, where the escape means the same.
    escaped = visible(document).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<application>\n{escaped}\n</application>"
