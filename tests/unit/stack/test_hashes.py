"""Every pin has the hashes of its files, and everybody who installs compares them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.stack import hashes
from app.stack.hashes import FILES, hashes_of, with_hashes, without_hashes
from app.stack.spec import PROJECT_ROOT

FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_pin_has_a_hash_on_its_line(file: Path) -> None:
    for line in file.read_text().splitlines():
        if line and not line.startswith(("#", "-r ")):
            one = r"[A-Za-z0-9_.-]+(\[[a-z0-9,]+\])?==[^\s;]+( --hash=sha256:[0-9a-f]{64})+"
            assert re.fullmatch(one, line), line[:80]


def test_there_are_no_other_requirements() -> None:
    assert set(PROJECT_ROOT.glob("requirements*")) == set(FILES)


def test_a_package_of_two_lists_has_the_same_hashes_in_both() -> None:
    lists = [set(file.read_text().splitlines()) for file in FILES]
    shared = set(hashes_of(FILES[0].read_text())) & set(hashes_of(FILES[2].read_text()))
    pins = {line.split(" ")[0] for line in lists[0]} & {line.split(" ")[0] for line in lists[2]}
    assert len(shared) > 5
    for pin in pins - {"", "#"}:
        assert [line for line in lists[0] if line.startswith(f"{pin} ")] == [
            line for line in lists[2] if line.startswith(f"{pin} ")
        ]


def test_an_extra_that_another_package_needs_is_pinned_with_it() -> None:
    """pip 23.2 looks for ``name[extra]`` as another package than a pinned ``name``, takes
    the newest version and refuses it, as it has no hash."""
    lines = "".join(file.read_text() for file in FILES).splitlines()
    pins = [Requirement(line.split(" ")[0]) for line in lines if "==" in line]
    extras = {canonicalize_name(pin.name): pin.extras for pin in pins}
    needed = {
        (canonicalize_name(wanted.name), extra)
        for wanted in chain.from_iterable(map(requirements_of, extras))
        if "==" not in str(wanted.specifier)
        for extra in wanted.extras
    }
    assert ("psycopg", "pool") in needed
    assert [(name, extra) for name, extra in needed if extra not in extras[name]] == []


def requirements_of(package: str) -> list[Requirement]:
    """What an installed package requires here; nothing if it is not installed."""
    try:
        found = [Requirement(text) for text in distribution(package).requires or ()]
    except PackageNotFoundError:  # of the cluster's
        return []
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def test_the_image_is_built_of_files_with_these_hashes() -> None:
    text = (PROJECT_ROOT / "Dockerfile").read_text()
    assert text.count("pip install") == text.count("${check:-}") == 1
    assert "ARG HASHES=1\n" in text and "else check=--require-hashes; fi" in text


def test_hashes_are_written_behind_pins_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = "# A comment\nFlask==3.1.3\nsome_thing[extra]==1.0\n\n-r others.txt\n"
    compiled = (
        f"flask==3.1.3 \\\n    --hash={SECOND} \\\n    --hash={FIRST}\n"
        f"some-thing==1.0 \\\n    --hash={FIRST}\n"
    )
    monkeypatch.setattr(hashes, "ask_index", lambda pins: hashes_of(compiled))
    file = tmp_path / "requirements.txt"
    file.write_text(written)
    for _ in range(2):  # also over those of before
        assert hashes.update(file) == "requirements.txt: 2 packages, 3 hashes\n"
        assert file.read_text().splitlines()[1:3] == [
            f"Flask==3.1.3 --hash={FIRST} --hash={SECOND}",
            f"some_thing[extra]==1.0 --hash={FIRST}",
        ]
        assert without_hashes(file.read_text()) == written
    assert with_hashes(file.read_text(), hashes_of(compiled)) == file.read_text()


def test_a_pin_that_the_index_does_not_know_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "ask_index", lambda pins: {"flask": []})
    file = tmp_path / "requirements.txt"
    file.write_text("Flask==3.1.3\n")
    with pytest.raises(SystemExit, match="no hashes of flask"):
        hashes.update(file)
    assert file.read_text() == "Flask==3.1.3\n"
