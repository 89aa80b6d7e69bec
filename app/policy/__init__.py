"""Decisions as plain functions over plain values. Imports the standard library only.

Fair share, rate limits, pacing, pool choice, quotas, scaling, forecasts, prices. ``now`` and
randomness are passed in, so that the scheduler, property tests and simulations run the same code.
"""
