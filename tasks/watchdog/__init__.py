"""Ending runs that do not end in time."""
