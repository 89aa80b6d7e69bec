"""Cells: several whole Fairlines that share their tenants, and the registry that names them."""
