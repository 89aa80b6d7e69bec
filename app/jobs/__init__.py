"""What clients and operators do to jobs that exist: cancel, replay, list."""
