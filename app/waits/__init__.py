"""Waits: why a job has not started, and when it probably will.

:mod:`~app.waits.reasons` and :mod:`~app.waits.forecast` are pure; :mod:`~app.waits.facts`
reads what they judge, :mod:`~app.waits.rivals` who else waits.
"""
