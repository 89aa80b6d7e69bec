"""What sizes are computed from: measured figures with their commands, and what is assumed."""

from __future__ import annotations

#: Money for a core with its memory, and cores that a worker of each pool has. Assumed.
CORE_HOUR = 0.04
WORKER_CORES = {"short": 1.0, "medium": 1.0, "long": 2.0}
