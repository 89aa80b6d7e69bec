"""The pictures of the README, taken from a running stack: ``make pictures``.

``traffic`` gives the stack something to show, ``camera`` looks at it through a real browser.
"""
