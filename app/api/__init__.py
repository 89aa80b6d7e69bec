"""The HTTP API: routes, schemas, authentication and the OpenAPI document."""
