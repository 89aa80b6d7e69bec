"""How bare-test reads the README, without a tree."""

from __future__ import annotations

from tests.bare.readme import differences, examples, requirements, script

README = """# A project
# apt-get install python3 make

## Use
```console
$ make up
```
```console
$ id=$(curl -s localhost:8000/jobs \\
       -d x)
$ curl -s localhost:8000/jobs/$id; echo   # shown
{"id":"…","status":"queued"}
```

## Other
```console
$ not this
```
"""


def test_commands_of_a_section_are_joined_and_keep_what_is_shown() -> None:
    first, second = examples(README, "Use")
    assert first.command == "id=$(curl -s localhost:8000/jobs -d x)"
    assert (first.shown, second.shown) == ((), ('{"id":"…","status":"queued"}',))
    assert "localhost:9000/jobs" in script([first, second], 9000)


def test_packages_are_those_that_the_readme_names() -> None:
    assert requirements(README) == ("python3", "make")


def test_output_is_compared_with_what_is_shown() -> None:
    shown = examples(README, "Use")
    good = "@@ fairline 0 @@\n@@ fairline 1 @@\n" + '{"id":"7","status":"queued"}\n'
    assert differences(shown, good) == []
    assert len(differences(shown, good.replace("queued", "dead"))) == 1
    assert "did not get to" in differences(shown, "@@ fairline 0 @@\n")[0]
