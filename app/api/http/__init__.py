"""Requests and responses: bodies, queries, replies and problem documents."""
