"""The OpenAPI document, generated from what routes declare and from the schemas that validate.

The models of ``app.api.schemas`` describe answers but do not serialise them: hot paths write
their bytes themselves. Tests check that answers match.
"""
