"""A model of every job's way, played against the product's own statements."""
