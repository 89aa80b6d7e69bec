"""The routes of the API, one file per resource; the factory registers their blueprints."""
