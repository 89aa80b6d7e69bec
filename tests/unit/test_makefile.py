"""The Makefile: variables that it names are taken, and what `make clean` stops and removes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
NAMED = sorted(
    {
        name
        for line in re.findall(r"^[a-z%-]+:.*## (.*)", MAKEFILE, re.M)
        for name in re.findall(r"\b([A-Z][A-Z_]+)=", line)
    }
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without .venv, and with the folders of two clusters that were stopped."""
    for name in ("Makefile", ".env.example", "app/stack/bootstrap.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (".cluster", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "layout.json").touch()
    return tmp_path


def make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=clone, capture_output=True, text=True, check=False)


def test_variables_that_the_help_names_are_taken() -> None:
    assert {"EACH", "CLUSTER", "SEED"} <= set(NAMED)
    done = make(ROOT, "--dry-run", "help", *(f"{name}=1" for name in NAMED))
    assert done.returncode == 0, done.stderr


def test_clean_removes_the_cluster_that_it_stops(clone: Path) -> None:
    done = make(clone, "clean", "CLUSTER_HOME=other")
    assert done.returncode == 0, done.stderr
    assert not (clone / "other").exists()
    assert (clone / ".cluster").exists(), "it may be running"


def test_clean_removes_a_cluster_that_was_stopped(clone: Path) -> None:
    done = make(clone, "clean")
    assert done.returncode == 0, done.stderr
    assert "No cluster is running." in done.stdout
    assert not (clone / ".cluster").exists()


def test_clean_keeps_a_cluster_that_it_cannot_stop(clone: Path) -> None:
    (clone / ".cluster/running").touch()
    done = make(clone, "clean")
    assert done.returncode != 0
    assert "run 'make venv-dev', then 'make cluster-down'" in done.stderr
    assert (clone / ".cluster/running").exists()


def test_clean_removes_no_folder_that_is_not_a_cluster(clone: Path) -> None:
    (clone / "other/layout.json").unlink()
    make(clone, "clean", "CLUSTER_HOME=other")
    assert (clone / "other").exists()


@pytest.mark.parametrize(
    ("ci", "first", "alone", "passes", "runs"),
    [
        pytest.param("", 1, 0, False, 1, id="not in CI"),
        pytest.param("true", 0, 1, True, 1, id="passes"),
        pytest.param("true", 1, 0, True, 2, id="passes alone"),
        pytest.param("true", 1, 1, False, 2, id="fails alone"),
        pytest.param("true", 2, 0, False, 1, id="broken off"),
    ],
)
def test_what_fails_beside_others_in_ci_has_to_pass_alone(
    clone: Path, ci: str, first: int, alone: int, passes: bool, runs: int
) -> None:
    python = clone / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    cases = f'case "$*" in *--last-failed*) exit {alone};; *) exit {first};; esac'
    python.write_text(f'#!/bin/sh\necho "$*" >> calls\n{cases}\n')
    python.chmod(0o755)
    (clone / "one.mk").write_text("include Makefile\none:\n\t$(call tests,tests/one,-n 3)\n")
    done = make(clone, "--file=one.mk", "one", f"CI={ci}")
    assert (done.returncode == 0) == passes, done.stderr
    calls = (clone / "calls").read_text().splitlines()
    assert len(calls) == runs and all("pytest tests/one" in call for call in calls)
