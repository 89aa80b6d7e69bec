"""Servers that stand in for those of others: they check what they are asked, and misbehave."""
