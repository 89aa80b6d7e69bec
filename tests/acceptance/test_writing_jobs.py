"""The guide, run: what its snippets say happens, happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loadtest.chaos.stack import Stack
from tests.acceptance.client import Client
from tests.acceptance.guide import ROOT, snippets, write_modules


def test_the_functions_can_be_tested_without_anything_running(tmp_path: Path) -> None:
    write_modules(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "test_myjobs.py"],
        cwd=tmp_path,
        env=environment,
        check=True,
    )


def test_every_command_of_the_guide_gives_the_answer_it_shows(platform_stack: Stack) -> None:
    job_id = ""
    asked = 0
    for snippet in snippets():
        if snippet.language != "sh" or "curl" not in snippet.text:
            continue
        command = snippet.text.replace("localhost:8000", f"localhost:{platform_stack.port}")
        answer = until_it_fits(command, job_id, snippet.answer)
        asked += 1
        job_id = answer.get("id", job_id)
    assert asked == 5, "commands were added or have gone"


def test_every_way_to_fail_does_what_the_guide_says(platform: Client) -> None:
    ended = {
        "not found": {"status": "dead", "error": {"class": "PERMANENT"}, "attempt": 1},
        "busy": {"status": "succeeded", "result": {"found": True}, "attempt": 1},
        "closed": {"status": "succeeded", "result": {"found": True}, "attempt": 1},
        "garbage": {"status": "scheduled", "error": {"class": "APP_ERROR"}, "attempt": 1},
    }
    waiting = {
        platform.submit_job("fetch", {"answer": answer}): shown for answer, shown in ended.items()
    }

    def all_fit() -> bool:
        for job_id, shown in list(waiting.items()):
            if fits(platform.show(job_id), shown):
                del waiting[job_id]
        return not waiting

    platform.stack.wait(all_fit, "each to end as it says", 40)


def until_it_fits(command: str, job_id: str, wanted: Any) -> dict[str, Any]:
    """Run the command until it answers as wanted; a submission does at once."""
    deadline = time.monotonic() + 30
    while True:
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "ID": job_id},
            capture_output=True,
            text=True,
            check=True,
        )
        answer = json.loads(done.stdout)
        if fits(answer, wanted):
            return dict(answer)
        assert "/jobs -H" not in command, f"{command}\nanswered {done.stdout}"
        assert time.monotonic() < deadline, f"{command}\nstill answers {done.stdout}"
        time.sleep(0.1)


def fits(answer: Any, wanted: Any) -> bool:
    """Whether ``answer`` has all that is wanted; ``…`` stands for anything."""
    match wanted:
        case "…":
            return bool(answer)
        case dict():
            return isinstance(answer, dict) and all(
                key in answer and fits(answer[key], value) for key, value in wanted.items()
            )
        case list():
            return len(answer) == len(wanted) and all(map(fits, answer, wanted))
        case _:
            return bool(answer == wanted)
