"""``/console/leaderboard``: who scored how, and why."""
