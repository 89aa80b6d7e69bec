"""Every page is there, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT

CODE = """
from app.console.pages import NAVIGATION
from app.console.page import LIVE_PAGES
rules = {page.rule for page in LIVE_PAGES}
assert {path for path, _, _ in NAVIGATION} <= rules, rules
assert len(LIVE_PAGES) == len(rules) == 20, rules
"""


def test_whoever_imports_the_menu_imports_every_page() -> None:
    subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, check=True)
