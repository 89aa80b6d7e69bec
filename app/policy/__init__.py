"""Decisions as plain functions over plain values; ``now`` and randomness are passed in.

Imports the standard library only, so that scheduler, property tests and simulations share it.
"""
