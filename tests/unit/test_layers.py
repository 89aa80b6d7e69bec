"""The map of the code, kept by tests: layers, no package cycles, one home for each statement.

Each rule is a function over the tree that returns its violations, so that a violation can be
planted in a copy and be seen.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests import ROOT

#: Each may import those before it.
LAYERS = ("models", "tasks", "app")
#: The same inside ``app``.
ORDER = (
    ("policy",),
    ("broker", "tenants", "reads"),
    ("admission",),
    ("scheduler",),
    ("api",),
    ("console",),
    ("cells",),
    ("server",),
)
#: Packages of plain functions over plain values: no I/O, no clock, no library.
PURE = ("app/policy", "tasks/retry")
WRITES_JOBS = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) jobs\b")
NUMBERED = re.compile(r"\brow\[\d+\]")
MOST_LINES = 350
#: Conditions that several statements share: where each is written, and how to know a copy.
SHARED_CONDITIONS = {
    r"state <> 'closed'": "models/jobs/held_back.py",
    r"closed_until > now\(\)": "models/jobs/held_back.py",
    r"(?<!DELETE )FROM verdicts\s+WHERE kind = 'throttle'": "models/jobs/held_back.py",
    r"(?<!DELETE )FROM verdicts\s+WHERE kind = 'quarantine'": "models/jobs/held_back.py",
    r"(?<!DELETE )FROM verdicts\s+WHERE kind = 'retry_budget'": "models/jobs/held_back.py",
    r"(?<!DELETE )FROM verdicts\s+WHERE kind = 'tenant_quarantine'": "models/jobs/held_back.py",
    r'WITH RECURSIVE[^"]*?\bFROM jobs\b': "models/jobs/lane_walk.py",
    r"\.expires_at < now\(\)": "models/leadership.py",
    r"role = 'relief' AND expires_at": "models/leadership.py",
    r"heartbeat_at > now\(\)": "models/presence.py",
    r"kind = 'worker' AND NOT draining": "models/presence.py",
}


def python_files(root: Path, *folders: str) -> Iterator[Path]:
    """The files of these folders, as paths below ``root``."""
    for folder in folders or LAYERS:
        yield from (path.relative_to(root) for path in sorted((root / folder).rglob("*.py")))


@cache
def parsed(path: Path, _changed: float) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it runs."""
    tree = parsed(path, path.stat().st_mtime)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def package_of(name: str) -> str:
    """``app.api`` of ``app.api.routes.jobs``."""
    return ".".join(name.split(".")[:2])


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def layer_violations(root: Path) -> list[str]:
    """Imports against the one arrow app → tasks → models."""
    return [
        f"{path} imports {name}"
        for path in python_files(root)
        for name in sorted(imports(root / path))
        if name.split(".")[0] in LAYERS[LAYERS.index(path.parts[0]) + 1 :]
    ]


def order_violations(root: Path) -> list[str]:
    """Imports inside ``app`` against its order."""
    places = {f"app.{name}": place for place, names in enumerate(ORDER) for name in names}
    found = []
    for path in python_files(root, "app"):
        package = package_of(module_of(path))
        for name in sorted(imports(root / path)):
            here, there = places.get(package, -1), places.get(package_of(name), -1)
            if here >= 0 and there > here:
                found.append(f"{path} imports {name}")
            elif package == "app.telemetry" and there > 0:
                found.append(f"{path} imports {name}; telemetry is called, it does not call")
    return found


def cycles(root: Path) -> list[str]:
    """A circle of packages, if there is one."""
    graph: dict[str, set[str]] = {}
    for path in python_files(root):
        package = package_of(module_of(path))
        used = {package_of(name) for name in imports(root / path) if name.split(".")[0] in LAYERS}
        graph.setdefault(package, set()).update(used - {package})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" → ".join(error.args[1])]
    return []


def impure_imports(root: Path) -> list[str]:
    """What pure packages import besides the standard library and themselves."""
    found = []
    for package in PURE:
        own = package.replace("/", ".")
        for path in python_files(root, package):
            for name in sorted(imports(root / path)):
                known = name.split(".")[0] in sys.stdlib_module_names
                if not known and not f"{name}.".startswith(f"{own}."):
                    found.append(f"{path} imports {name}")
    return found


def foreign_writers(root: Path) -> list[str]:
    """Statements that write ``jobs`` outside of ``models/jobs``."""
    return [
        f"{path} writes jobs"
        for path in python_files(root)
        if path.parts[:2] != ("models", "jobs") and WRITES_JOBS.search((root / path).read_text())
    ]


def copied_conditions(root: Path) -> list[str]:
    """Shared conditions that are written out again instead of used by name."""
    found = []
    for path in python_files(root):
        text = (root / path).read_text()
        for condition, home in SHARED_CONDITIONS.items():
            if len(re.findall(condition, text)) > (str(path) == home):
                found.append(f"{path} repeats {condition} of {home}")
    return found


def numbered_columns(root: Path) -> list[str]:
    """Rows that are read by the number of a column instead of its name."""
    return [
        f"{path} reads {found}"
        for path in python_files(root)
        for found in NUMBERED.findall((root / path).read_text())
    ]


def repeated_classes(root: Path) -> list[str]:
    """Class names that stand for two things; a table and its API schema may share one."""
    places: dict[str, list[Path]] = {}
    for path in python_files(root):
        tree = parsed(root / path, (root / path).stat().st_mtime)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    shared = {("app", "api", "schemas"), ("models", "schema")}
    return [
        f"{name} is defined in {', '.join(map(str, found))}"
        for name, found in places.items()
        if len(found) > 1
        and not (len(found) == 2 and {path.parent.parts for path in found} == shared)
    ]


def long_files(root: Path) -> list[str]:
    """Files that have outgrown one concern."""
    return [
        f"{path} has {lines} lines"
        for path in python_files(root)
        if (lines := len((root / path).read_text().splitlines())) > MOST_LINES
    ]


Rule = Callable[[Path], list[str]]

#: Each rule with a file and a line that break it.
PLANTED: dict[Rule, tuple[str, str]] = {
    layer_violations: ("models/pools.py", "from tasks.registry import JobType"),
    order_violations: ("app/reads/usage.py", "from app.api.services import services"),
    cycles: ("models/store/errors.py", "from models.jobs.states import JobStatus"),
    impure_imports: ("app/policy/pacing.py", "import sqlalchemy"),
    foreign_writers: ("app/reads/usage.py", 'SQL = "UPDATE jobs SET priority = 1"'),
    copied_conditions: ("app/reads/usage.py", "SQL = \"SELECT 1 WHERE state <> 'closed'\""),
    numbered_columns: ("app/reads/usage.py", "first = row[0]"),
    repeated_classes: ("app/reads/usage.py", "class Settlement: ..."),
    long_files: ("models/pools.py", "\n" * MOST_LINES),
}


#: Files that the planted lines are at odds with.
BESIDE = ("models/jobs/settle.py",)


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_the_map_is_kept(rule: Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_a_planted_violation_is_seen(rule: Rule, tmp_path: Path) -> None:
    name, line = PLANTED[rule]
    for known in (name, *BESIDE):
        (tmp_path / known).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / known, tmp_path / known)
    assert rule(tmp_path) == []
    with (tmp_path / name).open("a") as file:
        file.write(f"\n{line}\n")
    assert rule(tmp_path), f"nobody saw {line!r} in {name}"


def test_a_worker_needs_no_flask() -> None:
    code = "import app.celery, sys; assert 'flask' not in sys.modules, 'flask was imported'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_server_s_master_imports_nothing_that_gevent_must_patch_first() -> None:
    # kombu keeps the sleep that it found: one that blocks would stop all requests of a process.
    script = (
        "import sys, app.server.worker, app.server.gunicorn_hooks\n"
        "print({'kombu', 'amqp', 'celery', 'flask', 'app.api.services'} & sys.modules.keys())"
    )
    done = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "set()\n"
