"""README and docs: every command is typed by a test or listed, and how outputs are compared."""

from __future__ import annotations

import re

import pytest

from app.api.schemas.answers import Wait
from loadtest.fakes.claude_behaviours import BEHAVIOURS
from tests import ROOT
from tests.bare.__main__ import commands, requirements
from tests.support.documents import (
    Block,
    Example,
    blocks,
    differences,
    examples,
    line_fits,
    pages,
    script,
    section,
    template,
)
from tests.support.run_elsewhere import ELSEWHERE, is_run_elsewhere

README = (ROOT / "README.md").read_text()
GUIDE = "docs/writing-jobs.md"
#: Pages whose blocks ``console`` are typed: by tests/acceptance/test_readme.py, the last one by
#: tests/cluster/test_runbook.py.
TYPED = ("README.md", "docs/api.md", "docs/operations.md")
COMMAND = re.compile(r"^([A-Z_]+=\S+ )*(\$|curl|make|flask|python|celery|docker|gunicorn) ", re.M)
ALL = [block for page in pages() for block in blocks(page)]


def untested(block: Block) -> list[str]:
    """Commands of a block that nothing would run."""
    if block.language not in ("console", "sh"):
        return COMMAND.findall(block.text)
    if block.language == "console" and block.page in TYPED:
        return []
    by_guide = block.page == GUIDE and "curl" in block.text
    return [
        one.command
        for one in examples(block)
        if not by_guide and not is_run_elsewhere(block.page, one)
    ]


def test_every_command_is_run_by_a_test_or_listed() -> None:
    assert {block.page: found for block in ALL if (found := untested(block))} == {}


@pytest.mark.parametrize("language", ["sh", "console", "text", ""])
def test_a_new_command_that_nothing_runs_is_found(language: str) -> None:
    assert untested(Block("docs/states.md", language, "$ make coffee\n"))


def test_what_is_listed_is_still_there_and_so_is_what_runs_it() -> None:
    there = {page: {one.bare for block in blocks(page) for one in examples(block)}
             for page in ELSEWHERE}  # fmt: skip
    for page, listed in ELSEWHERE.items():
        assert listed.keys() - there[page] == set(), page
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for place, _ in (entry for listed in ELSEWHERE.values() for entry in listed.values()):
        target = place.removeprefix("make ")
        assert target in targets if target != place else (ROOT / place).exists(), place


def test_processes_that_compose_runs_are_those_of_the_readme() -> None:
    text = re.sub(r'[\[\]",\']|\s(?=\s)', "", (ROOT / "docker-compose.yml").read_text())
    for command, (place, _) in ELSEWHERE["README.md"].items():
        if place == "docker-compose.yml":
            assert command.replace("'", "") in text


def test_python_in_the_readme_is_that_of_the_guide() -> None:
    guide = [block.text for block in blocks(GUIDE)]
    for block in ALL:
        if block.language == "python" and block.page != GUIDE:
            assert block.text in guide, block


def test_documents_that_are_shown_are_json() -> None:
    for block in ALL:
        if block.language == "json":
            template(block.text)


def test_the_wait_that_is_documented_has_the_fields_of_the_answer() -> None:
    found = [template(block.text) for block in blocks("docs/api.md") if block.language == "json"]
    (shown,) = (one for one in found if "predicted_start" in one)
    assert set(shown) == set(Wait.model_fields)


def test_the_readme_lists_the_behaviours_of_the_local_claude_server() -> None:
    rows = re.findall(r"^\| (`.+?) \|", section(README, "Scoring with Claude"), re.M)
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(listed) == sorted(BEHAVIOURS)


def test_a_bare_machine_gets_what_the_readme_names_and_does_what_it_says() -> None:
    assert {"python3", "python3-venv", "make"} <= set(requirements(README))
    typed = commands(README)
    assert len(typed) > 8
    assert not [one for one in typed if one.bare.endswith("make up")]


PAGE = """# A project

## Use
```console
$ id=$(curl -s localhost:8000/jobs \\
       -d x)
$ curl -s localhost:8000/jobs/$id; echo   # shown
{"id":"01a1e391-96fc-769e-98fa-f9f9ac5d93b6","status":"queued",…}
```

## Other
```console
$ not this
```
"""
ID = "01a1e392-dfbc-76c5-82a7-42f0da94ac60"


def page_examples() -> list[Example]:
    (block,) = blocks("README.md", section(PAGE, "Use"))
    return examples(block)


def test_commands_of_a_section_are_joined_and_keep_what_is_shown() -> None:
    first, second = page_examples()
    assert first == Example("id=$(curl -s localhost:8000/jobs -d x)", ())
    assert second.bare == "curl -s localhost:8000/jobs/$id; echo"
    assert len(second.shown) == 1
    assert "localhost:9000/jobs" in script([first, second], {"localhost:8000": "localhost:9000"})


def test_all_that_is_printed_is_compared_with_what_is_shown() -> None:
    good = f'@@ fairline 0 @@\n@@ fairline 1 @@\n{{"id":"{ID}","status":"queued","more":1}}\n'
    assert differences(page_examples(), good) == []
    assert len(differences(page_examples(), good.replace("queued", "dead"))) == 1
    assert len(differences(page_examples(), good + "a warning\n")) == 1
    assert "did not get to" in differences(page_examples(), "@@ fairline 0 @@\n")[0]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ('{"score":20.33}', '{"score": 20.33}', True),
        ('{"score":20.33}', '{"score":24.86}', False),
        ('{"score":20.33}', '{"score":20.33,"more":1}', False),
        ('{"score":20.33,…}', '{"score":20.33,"more":1}', True),
        ('{"a":1,…,"b":2}', '{"b":2,"a":1}', False),
        ('{"a":1,"b":2}', '{"a":1}', False),
        (f'{{"id":"{ID[::-1]}"}}', f'{{"id":"{ID}"}}', True),
        (f'{{"id":"{ID}"}}', '{"id":"7"}', False),
        ('{"next_at":"2026-11-17T01:30:00.000Z"}', '{"next_at":"2027-01-01T00:00:00.5Z"}', True),
        ('{"next_at":"2026-11-17T01:30:00.000Z"}', '{"next_at":null}', False),
        ('{"position":52}', '{"position":7}', True),
        ('{"position":52}', '{"position":null}', False),
        ('{"done":true}', '{"done":1}', False),
        ('{"detail":"… jobs are ahead"}', '{"detail":"52 jobs are ahead"}', True),
        ('{"list":[{"a":1},…]}', '{"list":[{"a":1},{"a":2}]}', True),
        ('{"list":[{"a":1}]}', '{"list":[{"a":1},{"a":2}]}', False),
        ('data: {"a":1}', 'data: {"a":1}', True),
        ('data: {"a":1}', 'gone: {"a":1}', False),
        ('{"a":1}', "not JSON", False),
        ("key … revoked", "key z9arc1cz revoked", True),
        ("key … revoked", "key  revoked", False),
    ],
)
def test_lines_are_compared_by_value_and_what_varies_by_form(
    shown: str, printed: str, same: bool
) -> None:
    assert line_fits(shown, printed) is same
