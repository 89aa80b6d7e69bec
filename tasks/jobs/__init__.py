"""Built-in job types."""
