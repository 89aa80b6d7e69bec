"""The scheduler: a loop over roles, each a noun with ``run_once(now)``."""
