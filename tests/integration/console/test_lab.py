"""The pages of the load lab: reports as the lab writes them, and as nobody should."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.console.lab.reports import MOST_BYTES
from loadtest.report import Bar, Picture, Report, Table
from tests.support.browsing import Browser

PAGE = "/console/lab"
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture
def pages(operator: Browser, results: Path) -> Browser:
    """With a lab of the test's own."""
    operator.app.config["LAB_RESULTS"] = str(results)
    return operator


def write(results: Path, name: str = "knee", measured: float = 99.9) -> Path:
    """A report, as an experiment writes it."""
    report = Report(
        name,
        "The knee",
        findings=["The knee is at <b>6.66</b> a second."],
        pictures=[Picture("knee.png", "By rate"), Picture("missing.png", "Nowhere")],
        tables=[Table("Steps", ("offered", "scored"), [("2/s", "2.00/s"), ("<i>4</i>/s", "4/s")])],
        bars=[
            Bar("the knee", measured, ">=", 99.0, " %"),
            Bar("refused", 0.0, "<=", 0.0),
        ],
        notes=["Waits grow."],
        data={"question": "What happens?", "size": "quick", "took_seconds": 61.0},
    )
    report.write(results / name)
    (results / name / "knee.png").write_bytes(PNG)
    (results / name / "seconds.csv").write_text("a,b\n1,2\n")
    return results / name


def test_an_empty_lab_says_how_to_fill_it(pages: Browser, results: Path) -> None:
    assert "QUICK=1 make lab" in pages.text(PAGE)
    results.rmdir()
    assert "QUICK=1 make lab" in pages.text(PAGE)


def test_experiments_are_listed_with_the_verdict_of_their_bars(
    pages: Browser, results: Path
) -> None:
    write(results)
    write(results, "soak", measured=42.0)
    text, page = pages.text(PAGE), pages.get(PAGE).text
    assert "The knee 2 of 2 targets met quick run" in text
    assert "The knee 1 of 2 targets missed quick run" in text
    assert "What happens? The knee is at <b>6.66</b> a second." in text
    assert "<b>" not in page
    assert 'src="/console/lab/soak/knee.png"' in page


def test_an_experiment_is_shown_whole(pages: Browser, results: Path) -> None:
    write(results, measured=98.5)
    text, page = pages.text(f"{PAGE}/knee"), pages.get(f"{PAGE}/knee").text
    assert "1 of 2 targets missed." in text
    assert "the knee 98.50 % at least 99.00 % missed" in text
    assert "refused 0.00 at most 0.00 met" in text
    assert "Steps offered scored 2/s 2.00/s <i>4</i>/s 4/s" in text and "<i>" not in page
    assert (
        "quick run: smaller, with looser targets" in text
        and "61 s" in text
        and "Waits grow." in text
    )
    assert text.count("By rate") == 1 and "missing.png" not in page
    for file in ("seconds.csv", "report.md", "report.json"):
        assert f'href="/console/lab/knee/{file}" download' in page


def test_pictures_are_shown_and_figures_downloaded(pages: Browser, results: Path) -> None:
    write(results)
    (results / "knee" / "drawn.svg").write_text("<svg onload='alert(1)'/>")
    picture = pages.get(f"{PAGE}/knee/knee.png")
    assert (picture.data, picture.mimetype) == (PNG, "image/png")
    assert "attachment" not in picture.headers["Content-Disposition"]
    drawn = pages.get(f"{PAGE}/knee/drawn.svg")
    figures = pages.get(f"{PAGE}/knee/seconds.csv")
    assert figures.data == b"a,b\n1,2\n"
    assert figures.headers["Content-Disposition"] == "attachment; filename=knee-seconds.csv"
    for answer in (picture, drawn, figures):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        answer.close()
    assert Browser(pages.app).get(f"{PAGE}/knee/knee.png").status_code == 303


@pytest.mark.parametrize(
    "path",
    [
        "knee/report.txt",
        "knee/secret.png",
        "knee/..%2F..%2Fsecret.png",
        "knee/%2e%2e/secret.png",
        "../secret.png",
        "knee/.hidden.png",
        "knee/knee.png%00.csv",
        "knee/folder.png",
        "linked/report.json",
        "Knee/knee.png",
        "nothing",
        "linked",
        "..",
    ],
)
def test_nothing_but_the_labs_own_files_is_given_out(
    pages: Browser, results: Path, path: str
) -> None:
    folder = write(results)
    secret = results.parent / "secret.png"
    secret.write_bytes(b"nobody reads this")
    (folder / "secret.png").symlink_to(secret)
    (folder / ".hidden.png").write_bytes(b"nobody reads this")
    (folder / "report.txt").write_bytes(b"nobody reads this")
    (folder / "folder.png").mkdir()
    elsewhere = results.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "report.json").write_text((folder / "report.json").read_text())
    (results / "linked").symlink_to(elsewhere)
    answer = pages.get(f"{PAGE}/{path}")
    assert answer.status_code == 404
    assert b"nobody reads" not in answer.data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"title": "x"}',
        b'{"measured_at": "yesterday"}',
        b'{"measured_at": "2026-01-01T00:00:00Z", "bars": [{"claim": "x"}]}',
        b'{"measured_at": "2026-01-01T00:00:00Z", "pictures": [{"file": "../x.png"}]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_told_and_hurts_nothing_else(
    pages: Browser, results: Path, content: bytes
) -> None:
    write(results)
    broken = results / "broken"
    broken.mkdir()
    (broken / "report.json").write_bytes(content)
    (broken / "seconds.csv").write_text("a\n")
    text = pages.text(PAGE)
    assert "2 of 2 targets met" in text
    assert "Broken unreadable report.json cannot be read:" in text
    assert "report.json cannot be read:" in pages.text(f"{PAGE}/broken")
    assert "seconds.csv" in pages.text(f"{PAGE}/broken")


def test_a_report_of_another_age_hurts_nothing_else(pages: Browser, results: Path) -> None:
    write(results)
    folder = write(results, "ancient")
    document = json.loads((folder / "report.json").read_text())
    document["measured_at"] = "0001-01-01T00:00:00+14:00"
    (folder / "report.json").write_text(json.dumps(document))
    text = pages.text(PAGE)
    assert "The knee" in text and "is out of range" in text


def test_a_table_is_bounded_in_every_direction(pages: Browser, results: Path) -> None:
    folder = write(results)
    wide = "|" + "|".join(["x"] * 100_000) + "|\n"
    (folder / "report.md").write_text("## Wide\n" + wide + "|---|\n" + "|a|\n" * 300)
    page = pages.page(f"{PAGE}/knee")
    assert page.count("x</th>") == 50
    assert len(page) < 1_000_000


def test_odd_figures_and_older_reports_are_shown(pages: Browser, results: Path) -> None:
    folder = write(results)
    document = json.loads((folder / "report.json").read_text())
    bars = [{**document["bars"][0], "measured": value} for value in (float("nan"), 1e300)]
    older = {"measured_at": "2026-01-01T00:00:00", "bars": bars}
    (folder / "report.json").write_text(json.dumps(older))
    os.utime(folder / "report.json", ns=(1, 1))
    text = pages.text(f"{PAGE}/knee")
    assert "Knee 1 of 2 targets missed." in text and "nan % at least" in text
    assert text.count("knee.png") == 1, "what the report does not name is shown all the same"
    assert "1 of 2 targets missed" in pages.text(PAGE)


def test_a_report_that_is_too_large_is_not_opened(pages: Browser, results: Path) -> None:
    folder = write(results)
    with (folder / "report.json").open("ab") as file:
        file.truncate(MOST_BYTES + 1)
    assert "has more than" in pages.text(PAGE)


def test_a_new_report_takes_the_place_of_the_old_one(pages: Browser, results: Path) -> None:
    write(results)
    assert "2 of 2 targets met" in pages.text(PAGE)
    folder = write(results, measured=1.0)
    os.utime(folder / "report.json", ns=(2, 2))
    assert "1 of 2 targets missed" in pages.text(PAGE)
