"""Everything that is pinned installs from wheels: no compiler on any machine we name."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[.*?\])?==", re.M)
#: What uv says when it is the network that is missing, not a wheel.
UNREACHABLE = ("error sending request", "dns error", "Failed to fetch", "client error (Connect)")


def names(text: str) -> set[str]:
    """The packages that are pinned, spelled as package indexes do."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in PIN.findall(text)}


def resolve(python: str, machine: str) -> subprocess.Popen[str]:
    """uv at work: it resolves, and downloads nothing but what the index says of each package."""
    return subprocess.Popen(
        (
            *(
                sys.executable,
                "-m",
                "uv",
                "pip",
                "compile",
                "--quiet",
                "--no-header",
                "--system-certs",
            ),
            *("--no-annotate", "--only-binary=:all:", f"--python-version={python}"),
            *(f"--python-platform={machine}-manylinux_2_28", "requirements-dev.txt"),
        ),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_requirements_are_complete_and_need_no_compiler() -> None:
    """Also shows that nothing comes along that is not pinned."""
    pinned = "".join((ROOT / f"requirements{part}.txt").read_text() for part in ("", "-dev"))
    at_work = {
        (python, machine): resolve(python, machine)
        for python in ("3.11", "3.13")  # the oldest and the newest that the README names
        for machine in ("x86_64", "aarch64")
    }
    ended = {where: (*one.communicate(), one.returncode) for where, one in at_work.items()}
    for where, (resolved, said, code) in ended.items():
        if any(words in said for words in UNREACHABLE) and not os.environ.get("CI"):
            pytest.skip("the package index cannot be reached")
        assert code == 0, (where, said)
        assert names(resolved) == names(pinned), where
