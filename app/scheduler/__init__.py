"""The scheduler: roles that the leader runs in turn."""
