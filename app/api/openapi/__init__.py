"""The OpenAPI document: made of what routes declare, and of the schemas that validate.

``declared`` is how a view says what it takes and answers, ``parts`` what many of them share,
``document`` puts the declarations together with ``shapes`` (schemas) and ``errors`` (problems),
``routes`` serves the result and holds callers to it: a query parameter that is not declared is
refused. An application with an API route that declares nothing is not built.

Answers are described, not serialised, by the models of ``app.api.schemas.answers``: the
hot paths write
their bytes themselves. That they are as described is shown by tests.
"""
