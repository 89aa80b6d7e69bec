"""``/console/schedules``: work that comes again and again."""
