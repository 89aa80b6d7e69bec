"""Flask and Procrastinate on PostgreSQL, put together as Procrastinate's guide says.

A request is a row; a worker takes rows one by one, hears of new ones by NOTIFY and keeps the row
with its outcome.
"""
