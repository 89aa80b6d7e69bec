"""``/tenant``: a tenant's own page."""
