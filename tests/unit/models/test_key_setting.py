"""Keys in the environment: a wrong one ends the process with a line that repeats no part of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT


def start(keys: str) -> subprocess.CompletedProcess[str]:
    script = "import sys, models.encryption.values; print('cryptography' in sys.modules)"
    return subprocess.run(
        (sys.executable, "-c", script),
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "FAIRLINE_ENCRYPTION_KEYS": keys},
    )


@pytest.mark.parametrize(("keys", "imported"), [("", "False"), (f"a:{'A' * 43}=", "True")])
def test_the_library_is_imported_where_there_are_keys(keys: str, imported: str) -> None:
    assert start(keys).stdout.strip() == imported


def test_a_wrong_key_ends_the_process() -> None:
    ended = start("2026:c2VjcmV0")
    assert ended.returncode == 1
    expected = "fairline: FAIRLINE_ENCRYPTION_KEYS: key 2026 has 6 bytes instead of 32\n"
    assert ended.stderr == expected
