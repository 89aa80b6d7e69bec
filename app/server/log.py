"""gunicorn's log, written as everything else is."""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger  # type: ignore[import-untyped]  # no stubs

from app.logs import configure_logging


class ServerLog(Logger):  # type: ignore[misc]  # an untyped base
    """Hands gunicorn's lines to the root logger, which the application uses too."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        configure_logging()
