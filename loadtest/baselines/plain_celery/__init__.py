"""The shape people write today: Flask, SQLAlchemy and Celery, put together as their docs say.

One INSERT, one commit and one confirmed publish a request; one UPDATE and one commit a task.
"""
