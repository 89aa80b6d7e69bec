"""The OpenAPI document, generated from what routes declare and from the schemas that validate.

``declared`` is the decorator with which a view declares what it takes and answers, ``parts``
what several of them share. ``document`` combines the declarations with ``shapes`` (schemas) and
``errors`` (problems). ``routes`` serves the result and rejects undeclared query parameters. An
application with an API route that declares nothing is not built.

The models of ``app.api.schemas`` describe answers but do not serialise them: hot paths write
their bytes themselves. Tests check that answers match.
"""
