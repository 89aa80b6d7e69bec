"""The pictures of the README, taken from a running stack: ``make pictures``.

A stack under load, and a browser that takes screenshots of its pages.
"""
