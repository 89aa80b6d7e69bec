"""Everything that is pinned installs from wheels: no compiler on any machine we name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[.*?\])?==", re.M)
#: What uv says when it is the network that is missing, not a wheel.
UNREACHABLE = ("error sending request", "dns error", "Failed to fetch", "client error (Connect)")


def names(text: str) -> set[str]:
    """The packages that are pinned, spelled as package indexes do."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in PIN.findall(text)}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_requirements_are_complete_and_need_no_compiler(python: str, machine: str) -> None:
    """Resolved, not downloaded: also shows that nothing comes along that is not pinned."""
    resolved = subprocess.run(
        (
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"),
            *("--no-annotate", "--only-binary=:all:", f"--python-version={python}"),
            *(f"--python-platform={machine}-manylinux_2_28", "requirements-dev.txt"),
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if any(words in resolved.stderr for words in UNREACHABLE) and not os.environ.get("CI"):
        pytest.skip("the package index cannot be reached")
    assert resolved.returncode == 0, resolved.stderr
    pinned = "".join((ROOT / f"requirements{part}.txt").read_text() for part in ("", "-dev"))
    assert names(resolved.stdout) == names(pinned)
