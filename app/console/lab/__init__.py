"""``/console/lab``: the load lab's reports."""
