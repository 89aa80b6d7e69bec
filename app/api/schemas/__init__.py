"""Schemas of requests and answers; the OpenAPI document is generated from them."""
