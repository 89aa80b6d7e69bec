"""The command line of an experiment that has bars."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console

from loadtest.report import NO_FAIL, Report, options

Measure = Callable[[argparse.Namespace, Console], Report]


def command(program: str, about: str | None, measure: Measure, *flags: tuple[str, Any, str]) -> int:
    """Measure as the flags say, print and write the report; the exit status."""
    asked = options(program, about, *flags, NO_FAIL)
    console = Console()
    return measure(asked, console).conclude(console, no_fail=asked.no_fail)
