"""Commands in README and docs, and whether they print what is shown under them.

In a block ``console`` a command follows ``$``, and the lines after it are its whole output: ``…``
stands for the rest of a text, for further members of an object or elements of a list, and, on a
line of its own, for further lines. Values that differ each time are compared by their form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests import ROOT

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
REST = "…"
#: Printed before each command, so that what a command printed can be told apart.
MARK = "@@ fairline {} @@"

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
#: Members whose texts differ each time, by name, and their form.
TEXTS = {r"id": UUID, r".*_(at|start)": TIME}
#: Members whose numbers do.
NUMBERS = re.compile(r"position|.*_seconds")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """A command and the lines that are shown under it."""

    command: str
    shown: tuple[str, ...]

    @property
    def bare(self) -> str:
        """The command without a comment at its end."""
        return re.sub(r"\s+# .*", "", self.command)


def pages() -> list[str]:
    """README and docs, as paths below the repository."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(path.relative_to(ROOT).as_posix() for path in found)]


def blocks(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page, or of ``text`` instead of what is there."""
    given = (ROOT / page).read_text() if text is None else text
    return [Block(page, *found) for found in BLOCK.findall(given)]


def section(text: str, *titles: str) -> str:
    """These sections of a page, with their subsections."""
    parts = re.split(r"^## (.+)\n", text, flags=re.M)
    by_title = dict(zip(parts[1::2], parts[2::2], strict=True))
    return "".join(by_title[title] for title in titles)


def examples(block: Block) -> list[Example]:
    """The commands of a block; in one of the shell's own language each line is one."""
    # A command goes on after a backslash at the end of a line.
    text = re.sub(r"\\\n\s*", "", block.text)
    if block.language != "console":
        return [Example(line, ()) for line in text.splitlines() if line]
    found = []
    for piece in re.split(r"^[$#] ", text, flags=re.M)[1:]:
        command, _, rest = piece.partition("\n")
        found.append(Example(command, tuple(filter(None, rest.splitlines()))))
    return found


def script(wanted: Sequence[Example], replaced: Mapping[str, str]) -> str:
    """All of them for one bash, which stops at the first that fails.

    An answer that is an error is a failure too. ``replaced``: addresses as they are here.
    """
    lines = ["set -euo pipefail", 'curl() { command curl --fail-with-body "$@"; }', "exec 2>&1"]
    for number, example in enumerate(wanted):
        command = example.command
        for there, here in replaced.items():
            command = command.replace(there, here)
        lines += [f"echo '{MARK.format(number)}'", command]
    return "\n".join(lines)


def differences(wanted: Sequence[Example], output: str) -> list[str]:
    """Commands that printed something else than what is shown."""
    found = []
    for number, example in enumerate(wanted):
        _, started, rest = output.partition(MARK.format(number) + "\n")
        if not started:
            return [*found, f"it did not get to: {example.command}\n{output}"]
        printed = list(filter(None, rest.partition("@@ fairline ")[0].splitlines()))
        if not lines_fit(example.shown, printed):
            both = (f"  {title}: {line}" for title, lines in
                    (("shown", example.shown), ("here ", printed)) for line in lines)  # fmt: skip
            found.append("\n".join((example.command, *both)))
    return found


def lines_fit(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether these lines are those that are shown, all of them and in this order."""
    if not shown:
        return not printed
    if shown[0] == REST:
        return any(lines_fit(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and line_fits(shown[0], printed[0]) and lines_fit(shown[1:], printed[1:])


def line_fits(shown: str, printed: str) -> bool:
    """Whether a line is the one that is shown: by its JSON, if it is a document."""
    before, brace, _ = shown.partition("{")
    try:
        wanted, answer = template(shown[len(before) :]), json.loads(printed[len(before) :])
    except ValueError:
        return text_fits(shown, printed)
    return bool(brace) and printed.startswith(before) and fits(wanted, answer)


def template(shown: str) -> Any:
    """A JSON document in which ``…`` outside of texts is a member or an element of that name."""
    text, within, quoted = "", [], False
    for place, character in enumerate(shown):
        if character == '"' and shown[place - 1] != "\\":
            quoted = not quoted
        elif not quoted and character in "{[":
            within.append(character)
        elif not quoted and character in "}]" and within:
            within.pop()
        if character == REST and not quoted:
            text += '"…": "…"' if within[-1:] == ["{"] else '"…"'
        else:
            text += character
    return json.loads(text)


def fits(wanted: Any, answer: Any, name: str = "") -> bool:
    """Whether a document has what is wanted, and nothing else unless ``…`` says so."""
    match wanted:
        case dict():
            shown = [key for key in wanted if key != REST]
            return (
                isinstance(answer, dict)
                and [key for key in answer if key in wanted or REST not in wanted] == shown
                and all(fits(wanted[key], answer[key], key) for key in shown)
            )
        case list():
            shown = [element for element in wanted if element != REST]
            return (
                isinstance(answer, list)
                and (len(answer) >= len(shown) if REST in wanted else len(answer) == len(shown))
                and all(map(fits, shown, answer))
            )
        case str():
            return isinstance(answer, str) and string_fits(wanted, answer, name)
        case int() | float() if type(wanted) is not bool and NUMBERS.fullmatch(name):
            return isinstance(answer, int | float) and type(answer) is not bool
        case _:
            return type(answer) is type(wanted) and bool(answer == wanted)


def string_fits(wanted: str, answer: str, name: str) -> bool:
    """Whether a text is the one that is wanted, or has the form of its member."""
    for names, form in TEXTS.items():
        if re.fullmatch(names, name):
            return bool(re.fullmatch(form, answer))
    return text_fits(wanted, answer)


def text_fits(wanted: str, text: str) -> bool:
    """Whether two texts are the same; ``…`` stands for anything but nothing."""
    return bool(re.fullmatch(".+".join(map(re.escape, wanted.split(REST))), text, re.S))
