"""Chaos: kill, freeze and restart every part of a running stack under load; check every promise.

``python -m loadtest.chaos --minutes 2`` starts its own stack, submits work of every kind, and
compares what clients were answered with the tables, the queues, the leaderboard, the event stream
and a log that the jobs write. The acceptance tests use the same pieces.
"""
