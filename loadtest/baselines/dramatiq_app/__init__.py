"""Flask and Dramatiq on RabbitMQ, put together as Dramatiq's guide says.

A request is a message in a durable queue and nothing else: there is no row, no state, no result.
"""
