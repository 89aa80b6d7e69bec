"""``make up``: the embedded services (PostgreSQL, RabbitMQ) and the process manager."""
