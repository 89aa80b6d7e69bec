"""Quotas: what a dependency takes in a minute, and how fast jobs may flow towards it."""
