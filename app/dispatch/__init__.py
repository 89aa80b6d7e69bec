"""Dispatch: mark rows, publish references with confirms, route them to their pool."""
