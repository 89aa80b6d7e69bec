"""Ending runs that do not end by themselves."""
