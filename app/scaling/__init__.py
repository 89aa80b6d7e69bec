"""How many workers a pool should have: a pure policy, and what it is told about the line."""
