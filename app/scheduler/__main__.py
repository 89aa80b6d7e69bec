"""``python -m app.scheduler``: a scheduler. Of several, one leads and the others stand by."""

from __future__ import annotations

import signal
import threading

from app.celery import celery
from app.config import settings
from app.logs import configure_logging
from app.scheduler.service import SchedulerService
from app.telemetry.hooks import start_telemetry
from models.presence import process_name
from models.store.roles import DatabaseRole
from models.store.session import open_engine


def main() -> None:
    """Run until asked to stop."""
    configure_logging()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    engine = open_engine(settings(), process=process_name("scheduler"), role=DatabaseRole.SCHEDULER)
    start_telemetry("scheduler", engine)
    SchedulerService(engine, celery, settings()).run(stop)


if __name__ == "__main__":
    main()
