"""Chaos: hurt every part of a running stack under load, then prove that nothing was lost.

``python -m loadtest.chaos --minutes 2`` starts a stack of its own, has clients order work of
every kind, kills, freezes and restarts one process after the other at random moments, and
compares what clients were told with the tables, the queues, the leaderboard, the event stream
and a witness file. The acceptance tests use the same pieces.
"""
