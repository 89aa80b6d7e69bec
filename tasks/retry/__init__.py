"""Retry policy: what a failure means for its job, and what many mean for a type or tenant. Pure."""
