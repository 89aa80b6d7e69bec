"""``/console/cells``: all cells of the installation."""
