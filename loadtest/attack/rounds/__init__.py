"""The rounds of an attack: one module for each family."""
