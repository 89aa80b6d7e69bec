"""Chaos: kill, freeze and restart every part of a running stack under load; check every promise."""
