"""The README's commands, and whether they print what the README says."""

from __future__ import annotations

import re
from dataclasses import dataclass

BLOCK = re.compile(r"```console\n(.*?)```", re.S)
REQUIREMENTS = re.compile(r"^# apt-get install (.+)$", re.M)
#: Printed before each command, so that what a command printed can be told apart.
MARK = "@@ fairline {} @@"


@dataclass(frozen=True, slots=True)
class Example:
    """A command and the lines that the README shows under it; none: it may print what it likes."""

    command: str
    shown: tuple[str, ...]


def requirements(readme: str) -> tuple[str, ...]:
    """The Debian packages that the README asks for."""
    (line,) = REQUIREMENTS.findall(readme)
    return tuple(line.split())


def examples(readme: str, section: str) -> list[Example]:
    """The commands of one section, in order, but for those of the block that starts the stack."""
    text = readme.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = []
    for block in BLOCK.findall(text):
        if "$ make up" in block:
            continue
        for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
            # A command goes on after a backslash at the end of a line.
            command, _, rest = re.sub(r"\\\n\s*", "", piece).partition("\n")
            found.append(Example(command, tuple(filter(None, rest.splitlines()))))
    return found


def script(shown: list[Example], port: int) -> str:
    """All of them for one bash, which stops at the first that fails.

    An answer that is an error is a failure too.
    """
    lines = ["set -euo pipefail", 'curl() { command curl --fail-with-body "$@"; }']
    for number, example in enumerate(shown):
        lines += [f"echo '{MARK.format(number)}'", example.command]
    return "\n".join(lines).replace("localhost:8000", f"localhost:{port}")


def differences(shown: list[Example], output: str) -> list[str]:
    """What was printed otherwise than the README says; ``…`` stands for anything."""
    found = []
    for number, example in enumerate(shown):
        _, started, rest = output.partition(MARK.format(number) + "\n")
        if not started:
            return [*found, f"it did not get to: {example.command}"]
        printed = rest.partition("@@ fairline ")[0].strip().splitlines()
        for line in example.shown:
            pattern = ".*".join(re.escape(part) for part in line.split("…"))
            if not any(re.fullmatch(pattern, candidate) for candidate in printed):
                found.append(f"{example.command}\n  README: {line}\n  here:   {printed}")
    return found
