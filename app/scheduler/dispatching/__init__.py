"""From scheduled to dispatched: promotion, queues by tenant, fair share, the window."""
