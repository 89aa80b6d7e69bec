"""The command line: ``flask --app app …``."""
