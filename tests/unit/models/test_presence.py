"""Names of processes: unique whatever the host and the pid, and readable."""

from __future__ import annotations

import os

import pytest

from models.presence import parse_process, process_name


def test_a_process_keeps_its_name() -> None:
    assert process_name("api") == process_name("api")
    node, pid = parse_process(process_name("worker-medium-1@host"))
    assert (node, pid) == ("worker-medium-1@host", str(os.getpid()))


def test_a_forked_process_has_another_name_even_with_the_same_pid() -> None:
    reading, writing = os.pipe()
    names = {process_name("w@host").rpartition(":")[0]}
    for _ in range(2):
        if (child := os.fork()) == 0:
            os.write(writing, process_name("w@host").rpartition(":")[0].encode())
            os._exit(0)
        os.waitpid(child, 0)
        names.add(os.read(reading, 1000).decode())
    assert len(names) == 3
    assert {parse_process(f"{name}:1")[0] for name in names} == {"w@host"}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("worker-long-1@vm:27394", ("worker-long-1@vm", "27394")),  # by an earlier version
        ("worker-long-1@vm:0a1b2c:27394", ("worker-long-1@vm", "27394")),
        ("w@vm:123456:1", ("w@vm", "1")),
        ("w1", ("w1", "")),
        ("", ("", "")),
        ("odd:name", ("odd:name", "")),
    ],
)
def test_names_of_both_versions_are_understood(name: str, parts: tuple[str, str]) -> None:
    assert parse_process(name) == parts
