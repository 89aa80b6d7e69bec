"""``/``: is all well, and how each pool does."""
