"""``/console/tenants``: share and use of slot time, and one tenant."""
