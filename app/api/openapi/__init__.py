"""The OpenAPI document, generated from what routes declare and from the schemas that validate."""
