"""Stand-ins: servers of others, which check what they are asked and misbehave; a token bucket."""
