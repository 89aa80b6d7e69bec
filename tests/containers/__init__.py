"""``make compose-test``: docker-compose.yml under a Docker engine, without an image registry.

Not collected by pytest: it needs root and mmdebstrap, and takes minutes.
"""
