"""A rolling upgrade of a whole deployment under load."""
