"""``/console/workers``: who could run jobs, and what each runs."""
