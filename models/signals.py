"""Signals that the process manager and the processes agree on, besides the usual ones."""

from __future__ import annotations

import signal

#: Before SIGTERM: the worker is one too many and may take its time. What it runs ends there
#: instead of going on elsewhere from its next checkpoint.
RETIRE = signal.SIGUSR2
