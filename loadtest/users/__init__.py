"""Locust's users; `wire` does not import locust, which changes the sockets of the whole process."""
