"""One arrow: app → tasks → models. Pure packages import the standard library only."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("models", "tasks", "app")
PURE = (
    *sorted((ROOT / "tasks/retry").glob("*.py")),
    ROOT / "app/admission/bucket.py",
    ROOT / "app/admission/jitter.py",
    ROOT / "app/admission/ration.py",
    ROOT / "app/classify/histogram.py",
    ROOT / "app/classify/rules.py",
    ROOT / "app/console/overview/health.py",
    ROOT / "app/console/overview/series.py",
    ROOT / "app/console/schedules/words.py",
    ROOT / "app/dispatch/window.py",
    ROOT / "app/events/position.py",
    *sorted((ROOT / "app/fairshare").glob("*.py")),
    ROOT / "app/scaling/policy.py",
    ROOT / "app/quotas/tap.py",
    ROOT / "app/scheduler/pacing.py",
    ROOT / "app/schedules/ticks.py",
    ROOT / "app/tenants/keys.py",
    ROOT / "app/tenants/tenant.py",
    ROOT / "app/usage/pricing.py",
    ROOT / "tasks/quota.py",
    ROOT / "app/waits/forecast.py",
    ROOT / "app/waits/reasons.py",
    ROOT / "loadtest/shapes.py",
    ROOT / "models/slices.py",
    ROOT / "tasks/runtime/durations.py",
)


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


@pytest.mark.parametrize("layer", LAYERS)
def test_no_layer_imports_one_above_it(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    for path in (ROOT / layer).rglob("*.py"):
        wrong = {name for name in imports(path) if name.split(".")[0] in above}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_pure_modules_import_the_standard_library_only(path: Path) -> None:
    package = ".".join(path.parent.relative_to(ROOT).parts)
    for name in imports(path):
        root = name.split(".")[0]
        assert root in sys.stdlib_module_names or name.startswith(package), name


def test_a_worker_needs_no_flask() -> None:
    import subprocess

    code = "import app.celery, sys; assert 'flask' not in sys.modules, 'flask was imported'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
