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
LONG_TIMEOUT = re.compile(r"lock_timeout\s*(?:=|TO)\s*'?(\d+)\s*(ms|min|h|s)?", re.IGNORECASE)


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
        for number, unit in LONG_TIMEOUT.findall(text):
            if unit in ("min", "h") or (unit == "s" and int(number) > 10):
                found.append("it waits too long for a lock")
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
        "op.execute(\"SET LOCAL lock_timeout = '10s'\")",
    ],
)
def test_what_stops_nobody_is_allowed(allowed: str) -> None:
    assert violations(allowed) == []


class Locked(Exception):
    pgcode = ddl.LOCK_NOT_AVAILABLE


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
