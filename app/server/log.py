"""gunicorn's log, in the format of the application's."""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger

from app.logs import configure_logging


class ServerLog(Logger):  # type: ignore[misc]  # an untyped base
    """Passes gunicorn's log lines to the root logger, which the application uses too."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        configure_logging()
