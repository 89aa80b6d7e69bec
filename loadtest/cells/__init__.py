"""Cells on one machine: what they cost, and what holds while one is killed, moved from or lost."""
