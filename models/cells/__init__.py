"""Cells: several whole Fairlines with tenants divided over them, and the registry of them."""
