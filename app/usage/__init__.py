"""What a tenant used and what it costs."""
