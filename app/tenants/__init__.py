"""Tenants: their terms, API keys, quotas and schedules."""
