"""``make bare-test``: the README on a Debian that has nothing but what the README asks for.

Not collected by pytest: it needs root and mmdebstrap, and takes minutes.
"""
