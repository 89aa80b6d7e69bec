"""Regular work of the leader: reaping, expiry, retention, schedules, forecasts, samples."""
