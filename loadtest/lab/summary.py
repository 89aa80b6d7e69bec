"""The top report: all experiments that were run, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.bars import Bar
from loadtest.lab.catalogue import NAMES
from loadtest.report import BAR_HEADINGS, Table, describe, markdown


def write_summary(results: Path) -> Path:
    """Read what each experiment left behind and put it on one page."""
    lines = ["# The load lab", ""]
    found = 0
    for name in NAMES:
        file = results / name / "report.json"
        if not file.exists():
            continue
        found += 1
        lines += section(name, json.loads(file.read_text()))
    if not found:
        lines += ["Nothing has been run yet: `make lab`, or `QUICK=1 make lab`.", ""]
    summary = results / "report.md"
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text("\n".join(lines))
    return summary


def section(name: str, document: Mapping[str, Any]) -> list[str]:
    """One experiment: what it asked, what it found, its picture."""
    bars = [
        Bar(bar["claim"], bar["measured"], bar["relation"], bar["required"], bar["unit"])
        for bar in document["bars"]
    ]
    reached = sum(bar.passed for bar in bars)
    size = "" if document.get("size") == "full" else f", {document.get('size')} run"
    return [
        f"## [{document['title']}]({name}/report.md)",
        "",
        document["question"],
        "",
        f"**{reached} of {len(bars)} bars reached**{size}. {document['measured_at']}, "
        f"{describe(document['machine'])}.",
        "",
        *(f"{sentence}\n" for sentence in document.get("findings", ())),
        *(
            f"![{each['caption']}]({name}/{each['file']})\n"
            for each in document.get("pictures", ())[:1]
        ),
        *markdown(Table("Bars", BAR_HEADINGS, [bar.cells() for bar in bars])),
        "",
    ]
