"""Who is calling, and what they may call."""
