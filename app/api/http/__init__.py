"""HTTP requests and responses: bodies, queries, replies and problem documents."""
