"""Recurring schedules: when a tick comes, what an outage makes of it, and where they are kept."""
