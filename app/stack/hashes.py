"""Hashes of the pinned packages: ``python -m app.stack.hashes`` writes them behind each pin.

``make hashes`` runs it after a pin was changed. uv asks the package index (PyPI, unless uv is
configured otherwise) for every file of each version, so the hashes are those of all platforms and
Python versions. Comments, order and pins stay as they are: one line per package, so that a list
can be shortened with grep.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.stack.sbom import PIN, normalized
from app.stack.spec import PROJECT_ROOT

FILES = tuple(PROJECT_ROOT / f"requirements{part}.txt" for part in ("", "-dev", "-cluster"))
HASH = re.compile(r"\s+--hash=(sha256:[0-9a-f]{64})")
COMPILE = (
    *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-deps", "--universal"),
    *("--no-header", "--no-annotate", "--system-certs", "--generate-hashes", "-"),
)


def hashes_of(text: str) -> dict[str, list[str]]:
    """The hashes behind each pin, by the package's normalized name."""
    joined = text.replace("\\\n", " ")
    return {
        normalized(found[1]): HASH.findall(line)
        for line in joined.splitlines()
        if (found := PIN.match(line))
    }


def with_hashes(text: str, known: Mapping[str, Sequence[str]]) -> str:
    """The requirements with these hashes behind their pins, instead of those that were there."""
    lines = []
    for line in without_hashes(text).splitlines():
        found = PIN.match(line)
        files = sorted(known[normalized(found[1])]) if found else []
        lines.append(" ".join((line, *(f"--hash={one}" for one in files))))
    return "\n".join((*lines, ""))


def without_hashes(text: str) -> str:
    """The requirements as somebody wrote them."""
    return HASH.sub("", text)


def ask_index(pins: str) -> dict[str, list[str]]:
    """The hashes of all files of each pinned version, as the package index has them."""
    asked = subprocess.run(COMPILE, input=pins, stdout=subprocess.PIPE, text=True, check=False)
    if asked.returncode:
        raise SystemExit("fairline: uv could not ask the package index")
    return hashes_of(asked.stdout)


def update(file: Path) -> str:
    """Write the hashes of one file; a line about it."""
    text = without_hashes(file.read_text())
    pins = "".join(f"{line}\n" for line in text.splitlines() if PIN.match(line))
    known = ask_index(pins)
    if missing := hashes_of(pins).keys() - {name for name, files in known.items() if files}:
        raise SystemExit(f"fairline: the package index has no hashes of {', '.join(missing)}")
    file.write_text(with_hashes(text, known))
    return f"{file.name}: {len(known)} packages, {sum(map(len, known.values()))} hashes\n"


def main() -> None:
    """Write the hashes of all requirements."""
    for file in FILES:
        sys.stdout.write(update(file))


if __name__ == "__main__":
    main()
