"""Faults of a cluster under load: processes, engines, machines and networks; then one checker."""
