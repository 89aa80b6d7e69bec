"""Serving all cells from one process: finds a caller's cell, and calls the app of it."""
