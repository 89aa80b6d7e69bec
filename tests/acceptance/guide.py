"""The guide ``docs/writing-jobs.md`` as files and commands."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ROOT

GUIDE = (ROOT / "docs/writing-jobs.md").read_text()


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block, and the document that the guide promises as its answer."""

    language: str
    text: str
    answer: Any = None


def snippets() -> list[Snippet]:
    found = re.findall(r"```(\w+)\n(.*?)```(?:\n```json\n(.*?)```)?", GUIDE, re.S)
    return [
        Snippet(language, text, json.loads(answer) if answer else None)
        for language, text, answer in found
    ]


def write_modules(folder: Path) -> None:
    """The Python blocks as the files that they name in their first line."""
    for snippet in snippets():
        if snippet.language == "python":
            name = snippet.text.split("\n", 1)[0].removeprefix("# ")
            with (folder / name).open("a") as file:
                file.write(snippet.text)
