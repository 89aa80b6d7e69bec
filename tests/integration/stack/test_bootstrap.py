"""``app/stack/bootstrap.sh``: an installation that fails says why and what to do about it.

pip is real, and so is what it runs into; the package index is a folder or a closed port.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tarfile
import venv
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests import ROOT


class Project:
    """A folder with a Makefile, a ``.venv`` that has pip alone, and requirements of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app/stack").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", folder)
        shutil.copy(ROOT / "app/stack/bootstrap.sh", folder / "app/stack")

    def require(self, *lines: str, digest: str = "0" * 64) -> None:
        """Pins with the hash of a file that nobody has, unless it is given."""
        pins = (f"{line} --hash=sha256:{digest}" if "==" in line else line for line in lines)
        (self.folder / "requirements.txt").write_text("\n".join(pins) + "\n")

    def make(self, target: str, **variables: str) -> tuple[int, str]:
        """How ``make`` ends, and what it says."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "MAKE"))}
        ended = subprocess.run(
            ("make", "--no-print-directory", target),
            cwd=self.folder,
            env={**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.venv`` takes seconds to make, so one is made and its folder is used by all tests."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / ".venv", with_pip=True)
    return folder


@pytest.fixture
def project(made: Path) -> Project:
    stamp = ".venv/.requirements.txt.sha256"
    for name in ("app", "Makefile", "requirements.txt", ".venv.lock", stamp):
        path = made / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return Project(made)


@pytest.mark.parametrize("target", ["down", "status", "demo"])
def test_commands_without_an_installation_say_so_in_a_line(target: str, tmp_path: Path) -> None:
    code, said = Project(tmp_path).make(target)
    assert ".venv is missing or incomplete" in said
    assert (code == 0) == (target == "down"), "nothing is left to stop"
    assert len([line for line in said.splitlines() if not line.startswith("make: ")]) == 1
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("target", ["down", "status", "demo"])
def test_commands_after_a_failed_installation_say_so_in_a_line(
    target: str, project: Project
) -> None:
    project.require("not-there==1.0")
    assert project.make("venv", PIP_NO_INDEX="1")[0] != 0
    code, said = project.make(target)
    assert ".venv is missing or incomplete" in said
    assert (code == 0) == (target == "down")
    assert "Traceback" not in said


def test_nothing_is_removed_under_a_stack_that_may_still_run(tmp_path: Path) -> None:
    home = tmp_path / ".run"
    home.mkdir()
    for name in ("stack-id", "supervisor.json"):
        (home / name).touch()
    code, said = Project(tmp_path).make("clean")
    assert code != 0
    assert "a stack may still run in .run" in said
    assert (home / "stack-id").exists()


def test_package_without_a_wheel_is_named_and_not_compiled(
    project: Project, tmp_path: Path
) -> None:
    source = tmp_path / "setup.py"
    source.write_text("raise SystemExit('a compiler would be needed')")
    with tarfile.open(tmp_path / "compiled_thing-2.1.tar.gz", "w:gz") as archive:
        archive.add(source, "compiled_thing-2.1/setup.py")
    project.require("compiled-thing==2.1")
    code, said = project.make("venv", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert code != 0
    assert (
        "pip could not install compiled-thing==2.1: the package index does not have it, or" in said
    )
    assert "has no wheel of it" in said
    assert "compiler would be needed" not in said


def make_wheel(folder: Path) -> Path:
    """some-thing 1.0, which has nothing in it."""
    path, about = folder / "some_thing-1.0-py3-none-any.whl", "some_thing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.0\n"
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.mark.parametrize("checked", [True, False])
def test_file_without_one_of_the_hashes_is_refused(
    project: Project, tmp_path: Path, checked: bool
) -> None:
    wheel = make_wheel(tmp_path)
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    installed = project.folder.glob(".venv/lib/python*/site-packages/some_thing-1.0.dist-info")
    project.require("some-thing==1.0")
    code, said = project.make("venv", **index)
    assert code != 0 and not list(installed)
    assert "pip refused some-thing==1.0: what it downloaded is not a file that" in said
    assert "HASHES=0" in said
    if checked:
        project.require("some-thing==1.0", digest=sha256(wheel.read_bytes()).hexdigest())
    else:
        index["HASHES"] = "0"
    code, said = project.make("venv", **index)
    assert code == 0, said
    assert ("not compared with their hashes" in said) is not checked
    assert project.make("venv", PIP_NO_INDEX="1") == (0, ""), "that installation counts"
    words = (".venv/bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "some-thing")
    subprocess.run(words, cwd=project.folder, check=True)


def test_pin_without_a_hash_is_refused(project: Project, tmp_path: Path) -> None:
    make_wheel(tmp_path)
    (project.folder / "requirements.txt").write_text("some-thing==1.0\n")
    code, said = project.make("venv", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert code != 0
    assert "requirements.txt has a pin without hashes: run 'make hashes'" in said


def test_wheel_of_another_version_is_not_enough(project: Project, tmp_path: Path) -> None:
    make_wheel(tmp_path)
    project.require("some-thing==2.0")
    code, said = project.make("venv", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert code != 0
    assert "pip could not install some-thing==2.0: the package index has no wheel of this" in said
    assert "Use Python 3.11, 3.12 or 3.13" in said


@pytest.mark.parametrize("python", ["/bin/false", "/bin/true", "/no/such/python"])
def test_python_that_is_none_is_refused(tmp_path: Path, python: str) -> None:
    project = Project(tmp_path)
    project.require("# nothing")
    code, said = project.make("venv", PYTHON=python)
    assert code != 0
    assert f"PYTHON={python} is not Python 3.11 or newer" in said


def test_index_that_does_not_answer_is_not_a_missing_wheel(project: Project) -> None:
    project.require("anything==1.0")
    code, said = project.make("venv", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert code != 0
    assert "pip could not download anything==1.0: the package index does not respond" in said
    assert "PIP_INDEX_URL" in said


def test_installation_that_was_cut_short_does_not_count(project: Project) -> None:
    """Even if the requirements are those of the last complete one again."""
    project.require("# nothing")
    assert project.make("venv")[0] == 0
    project.require("not-there==1.0")
    assert project.make("venv", PIP_NO_INDEX="1")[0] != 0
    project.require("# nothing")
    assert "installing 0 packages" in project.make("venv")[1]


def test_whoever_may_read_the_requirements_cannot_keep_others_from_installing(
    project: Project,
) -> None:
    project.require("# nothing")
    with (project.folder / "requirements.txt").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, said = project.make("venv")
    assert (code, "installing 0 packages" in said) == (0, True), said
    lock = project.folder / ".venv.lock"
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_who_waits_for_another_installation_says_so(project: Project) -> None:
    project.require("# nothing")
    assert project.make("venv")[0] == 0
    with (project.folder / ".venv.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = ("make", "--no-print-directory", "venv")
        with subprocess.Popen(words, cwd=project.folder, stdout=subprocess.PIPE) as waits:
            assert waits.stdout
            assert b"waiting for another installation" in waits.stdout.readline()
            assert waits.poll() is None
            fcntl.flock(file, fcntl.LOCK_UN)
            assert waits.stdout.read() == b""
    assert waits.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_lock_that_root_makes_belongs_to_the_owner_of_the_folder(project: Project) -> None:
    project.require("# nothing")
    os.chown(project.folder, 65534, 65534)
    try:
        assert project.make("venv")[0] == 0
        assert (project.folder / ".venv.lock").stat().st_uid == 65534
    finally:
        os.chown(project.folder, 0, 0)


def test_what_was_installed_once_is_not_installed_again(project: Project) -> None:
    project.require("# nothing")
    code, said = project.make("venv")
    assert (code, "installing 0 packages" in said) == (0, True), said
    assert project.make("venv") == (0, "")
