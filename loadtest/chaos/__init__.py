"""Chaos: kill parts of a running stack under load, then prove that nothing was lost.

``python -m loadtest.chaos --rounds 10`` starts a stack of its own, submits applications, kills
one process after the other at random moments and compares what clients were promised with
what the tables say. The acceptance tests use the same pieces.
"""
