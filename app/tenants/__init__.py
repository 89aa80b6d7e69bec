"""Whose work it is: tenants, their limits, and the keys that speak for them."""
