"""How a score came about, as answers and pages tell it: marks, quotes, model, rubric and input.

Read from the result of the scoring job, or from what the application keeps of it once the job is
retired. Scores from before records were kept have fewer parts; what is missing is null.
"""

from __future__ import annotations

from typing import Any

import orjson

#: Of an application that has no score.
NOTHING: dict[str, Any] = {"criteria": None, "evidence": None, "record": None}


def told(result: str | None) -> dict[str, Any]:
    """``criteria``, ``evidence`` and ``record`` from a score's JSON."""
    said = orjson.loads(result) if result else None
    if not isinstance(said, dict):
        return NOTHING
    names = ("model", "rubric", "input", "dropped_quotes")
    return {
        "criteria": said.get("criteria"),
        "evidence": said.get("evidence"),
        "record": {name: said.get(name) for name in names},
    }
