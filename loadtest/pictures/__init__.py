"""The pictures of the README, taken by a browser from a stack under load: ``make pictures``."""
