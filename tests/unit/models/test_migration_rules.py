"""Rules for migrations: indexes of big tables concurrently, and no lock without a time-out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from app.stack.spec import PROJECT_ROOT
from migrations import ddl

#: Older ones ran before these rules, on tables that were empty then.
FIRST = "0005"
MOST_MILLISECONDS = 500
PLAIN_INDEX = re.compile(
    r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)(?:IF NOT EXISTS\s+)?\w*\s*"
    r"ON\s+(?:ONLY\s+)?(\w+)",
    re.IGNORECASE,
)
ADDED_INDEX = re.compile(
    r"ALTER\s+TABLE\s+(\w+)[^;]*?ADD\s+(?:CONSTRAINT\s+\w+\s+)?(?:UNIQUE|PRIMARY\s+KEY)\s*\(",
    re.IGNORECASE,
)
NEW_TABLE = re.compile(r"CREATE\s+TABLE\s+(?:IF NOT EXISTS\s+)?(\w+)", re.IGNORECASE)
NO_TIMEOUT = re.compile(r"lock_timeout\s*(?:=|TO)\s*'?0", re.IGNORECASE)
TIMEOUT = re.compile(r"lock_timeout'?\s*(?:=|TO|,)\s*'?(\d+)\s*(us|ms|min|h|d|s)?", re.IGNORECASE)
#: Milliseconds, by unit; a number without one is given in them.
UNITS = {"us": 0.001, "": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def texts_of(source: str) -> Iterator[str]:
    """The string literals of a file; of an f-string, what is written out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "x" for part in node.values
            )


def calls_of(source: str) -> Iterator[tuple[str, list[str]]]:
    """Calls of ``op``, by name, with their plain arguments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, [str(a.value) for a in node.args if isinstance(a, ast.Constant)]


def violations(source: str) -> list[str]:
    """What a migration must not do, in words."""
    texts = list(texts_of(source))
    new = {name.lower() for text in texts for name in NEW_TABLE.findall(text)}
    big = ddl.BIG_TABLES - new
    found = []
    for text in texts:
        for pattern in (PLAIN_INDEX, ADDED_INDEX):
            found += [
                f"an index on {table} that stops its writers: use migrations.ddl.build_index"
                for table in pattern.findall(text)
                if table.lower() in big
            ]
        if NO_TIMEOUT.search(text):
            found.append("it waits for locks without a time-out")
        for number, unit in TIMEOUT.findall(text):
            if int(number) * UNITS[unit.lower()] > MOST_MILLISECONDS:
                found.append("it waits longer for a lock than every migration does")
    for name, arguments in calls_of(source):
        if name == "create_index" and big & set(arguments):
            found.append("an index that stops the writers: use migrations.ddl.build_index")
    return found


def migrations() -> list[Path]:
    folder = Path(PROJECT_ROOT, "migrations/versions")
    return sorted(path for path in folder.glob("0*.py") if path.name[:4] >= FIRST)


@pytest.mark.parametrize("path", migrations(), ids=lambda path: path.stem)
def test_migration_keeps_the_rules(path: Path) -> None:
    assert violations(path.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        'op.execute("CREATE INDEX jobs_new ON jobs (worker)")',
        'op.execute("""CREATE UNIQUE INDEX\n jobs_new ON jobs (worker)""")',
        'op.execute(f"CREATE INDEX {name} ON events (at)")',
        'op.create_index("jobs_new", "jobs", ["worker"])',
        'op.execute("ALTER TABLE usage ADD CONSTRAINT one UNIQUE (day)")',
        'op.execute("SET lock_timeout = 0")',
        "op.execute(\"SET LOCAL lock_timeout TO '0'\")",
        "op.execute(\"SET lock_timeout = '5min'\")",
        "op.execute(\"SET LOCAL lock_timeout = '10s'\")",
        "op.execute(\"SET LOCAL lock_timeout = '2001ms'\")",
        'op.execute("SET lock_timeout TO 5000")',
        "op.execute(\"SELECT set_config('lock_timeout', '3s', true)\")",
    ],
)
def test_planted_violation_is_found(planted: str) -> None:
    assert len(violations(planted)) == 1


@pytest.mark.parametrize(
    "allowed",
    [
        'op.execute("CREATE INDEX CONCURRENTLY jobs_new ON jobs (worker)")',
        'op.execute("CREATE TABLE events (id int)"); op.execute("CREATE INDEX e ON events (id)")',
        'op.execute("CREATE INDEX verdicts_new ON verdicts (name)")',
        "op.execute(\"SET LOCAL lock_timeout = '500ms'\")",
        'op.execute("SET LOCAL lock_timeout = 200")',
    ],
)
def test_what_stops_nobody_is_allowed(allowed: str) -> None:
    assert violations(allowed) == []


def test_limit_is_the_time_that_every_migration_waits() -> None:
    [(number, unit)] = TIMEOUT.findall(ddl.SET_LOCK_TIMEOUT)
    assert int(number) * UNITS[unit] == MOST_MILLISECONDS


class Locked(Exception):
    pgcode = "55P03"


class Deadlock(Exception):
    pgcode = "40P01"


@pytest.mark.parametrize("why", [Locked, Deadlock])
def test_migration_is_repeated_after_a_lock_that_it_did_not_get(
    monkeypatch: pytest.MonkeyPatch, why: type[Exception]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(ddl.time, "sleep", pauses.append)
    attempts = iter([why(), why(), None])

    def migrate() -> None:
        if (error := next(attempts)) is not None:
            raise OperationalError("ALTER TABLE", {}, error)

    ddl.with_retries(migrate)
    assert pauses == list(ddl.PAUSES[:2])


def test_lock_that_is_never_granted_is_given_up_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(ddl.time, "sleep", pauses.append)

    def locked() -> None:
        raise OperationalError("ALTER TABLE", {}, Locked())

    with pytest.raises(SystemExit, match="another transaction holds a lock"):
        ddl.with_retries(locked)
    assert pauses == list(ddl.PAUSES)


def test_any_other_error_ends_the_migration_at_once() -> None:
    with pytest.raises(OperationalError):
        ddl.with_retries(lambda: (_ for _ in ()).throw(OperationalError("x", {}, Exception())))
