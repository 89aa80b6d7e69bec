"""Locust's users and what they share: the clock, the wire, the record, the run.

`clock`, `wire` and `record` do not import locust: it changes the sockets of the whole process,
which nobody who merely reads a record wants.
"""
