"""``/console/jobs`` and ``/console/dead-letters``: all jobs, one job, and those given up on."""
