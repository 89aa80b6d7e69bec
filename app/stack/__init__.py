"""``make up``: the embedded services (PostgreSQL, RabbitMQ) and the process manager.

The API, the scheduler and the workers import none of it: they get the addresses of their
database and broker from the environment.
"""
