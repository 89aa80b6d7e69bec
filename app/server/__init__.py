"""The web server: gunicorn's worker with a fast path for plain requests, and the application."""
