"""``python -m loadtest.sizing``: prints ``docs/sizing.md``; ``--docs`` writes it."""

from __future__ import annotations

from pathlib import Path

from loadtest.report import options
from loadtest.sizing.document import document

DOCUMENT = Path(__file__).parents[2] / "docs" / "sizing.md"

if __name__ == "__main__":
    asked = options("python -m loadtest.sizing", __doc__, ("--docs", False, "write docs/sizing.md"))
    if asked.docs:
        DOCUMENT.write_text(document())
    else:
        print(document(), end="")
