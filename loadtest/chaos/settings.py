"""How stacks under test are configured."""

from __future__ import annotations

#: One pool, and a lease short enough that lost work comes back while somebody watches.
MEDIUM_ONLY = {
    "FAIRLINE_SCORE_SECONDS": "0.2",
    "FAIRLINE_POOLS": '{"medium":{"lease_seconds":6}}',
    "FAIRLINE_SERVED_POOLS": "medium",
    "WORKERS_SHORT": "0",
    "WORKERS_LONG": "0",
}
#: Two of everything that can be had twice, and short leases everywhere.
EVERY_POOL = {
    "FAIRLINE_SCORE_SECONDS": "1",
    "FAIRLINE_POOLS": (
        '{"short":{"lease_seconds":6},"medium":{"lease_seconds":6},"long":{"lease_seconds":9}}'
    ),
    "FAIRLINE_JOB_MODULES": "loadtest.chaos.witness",
    # Workers die by our hand, and for all the platform knows by the jobs they run: after a while
    # the tenant would run one job at a time, and its line only grow.
    "FAIRLINE_THROTTLE_CRASHES": "1000000",
    "WORKERS_SHORT": "2",
    "WORKERS_MEDIUM": "2",
    "WORKERS_LONG": "2",
    "API_WORKERS": "2",
    "SCHEDULERS": "2",
}
