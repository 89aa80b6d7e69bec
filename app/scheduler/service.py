"""The loop: every role in its own rhythm, only while this process leads."""

from __future__ import annotations

import logging
import threading
import time

from celery import Celery
from sqlalchemy import Engine

from app.classify.estimates import Estimates
from app.config import Settings
from app.dispatch.publish import Publisher
from app.scaling.policy import Policy, policy_of
from app.scheduler.autoscaler import EVERY_SECONDS, Autoscaler
from app.scheduler.classifier import CLASSIFY_SECONDS, Classifier
from app.scheduler.collector import Collector
from app.scheduler.dispatcher import Dispatcher
from app.scheduler.expirer import Expirer
from app.scheduler.forecaster import FORECAST_SECONDS, Forecaster
from app.scheduler.housekeeping import Housekeeping
from app.scheduler.leader import RENEW_SECONDS, Leader
from app.scheduler.lines import Lines
from app.scheduler.metronome import TICK_SECONDS, Metronome
from app.scheduler.pools import Pools
from app.scheduler.promoter import Promoter
from app.scheduler.reaper import Reaper
from app.scheduler.recorder import Recorder
from app.scheduler.retirer import Kept, Retirer
from app.scheduler.rhythm import Rhythm
from app.scheduler.shares import RECONCILE_SECONDS, Shares
from app.scheduler.taps import Taps
from app.scheduler.warden import warden
from app.telemetry import observing_roles
from models.blobs import open_blobs
from models.errors import StatementTooSlow, StateStoreError
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS, Presence, announce, leave, process_name
from tasks.registry import load_types

logger = logging.getLogger(__name__)

#: Rest after a turn that found nothing to do, and after one that did.
IDLE_SECONDS = 0.04
BUSY_SECONDS = 0.002
#: Rest of a role whose statement took too long; the others go on.
SLOW_SECONDS = 2.0
#: Rest while the state store is away.
AWAY_SECONDS = 0.5
#: Nothing is reaped for so long after that.
REAP_REST_SECONDS = 3.0
#: Rest of a role that failed by its own fault.
FAILED_SECONDS = 5.0
DAY_SECONDS = 86_400.0


def policies(settings: Settings) -> dict[str, Policy]:
    """What the autoscaler goes by, for each pool."""
    return {
        pool: policy_of(pool, settings.scale_min, settings.scale_max, settings.scale_policy)
        for pool in POOLS
    }


class Announcer:
    """Says that the scheduler lives."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def run_once(self, now: float) -> int:
        announce(self._engine, Presence(self._name, "scheduler"))
        return 0


class SchedulerService:
    """One scheduler process."""

    def __init__(self, engine: Engine, celery: Celery, settings: Settings) -> None:
        self._engine = engine
        self._name = process_name("scheduler")
        self._leader = Leader(engine, self._name)
        self._publisher = Publisher(celery, settings.publish_seconds)
        types = load_types(settings.job_modules)
        lines = Lines(engine, self._leader)
        taps = Taps(engine, self._leader, types, settings.quotas)
        pools = Pools(engine, lines, taps)
        estimates = Estimates(engine)
        self._reaping = Rhythm(Reaper(engine, self._leader, types), 1.0)
        self._rhythms = [
            Rhythm(self._leader, RENEW_SECONDS, always=True),
            Rhythm(Announcer(engine, self._name), PRESENCE_SECONDS, always=True),
            self._reaping,
            Rhythm(Expirer(engine, self._leader), 1.0),
            *warden(engine, self._leader, types, settings.throttle_crashes),
            Rhythm(
                Metronome(engine, self._leader, types, settings.served_pool_names), TICK_SECONDS
            ),
            Rhythm(Promoter(engine, self._leader, pools, settings.promote_per_second), 0.05),
            Rhythm(
                Dispatcher(engine, self._leader, self._publisher, pools, lines, estimates, taps),
                0.0,
            ),
            Rhythm(Shares(engine, self._leader, lines, estimates), RECONCILE_SECONDS),
            Rhythm(Autoscaler(engine, self._leader, pools, policies(settings)), EVERY_SECONDS),
            Rhythm(Recorder(engine, self._leader), 0.0),
        ]
        blobs = open_blobs(settings.blob_url)
        kept = Kept(
            finished=settings.keep_finished_days * DAY_SECONDS,
            dead=settings.keep_dead_days * DAY_SECONDS,
            events=settings.keep_events_days * DAY_SECONDS,
            keys=settings.keep_keys_hours * 3600.0,
        )
        self._housekeeping = Housekeeping(
            self._leader,
            [
                Rhythm(Retirer(engine, self._leader, blobs, kept), 0.0),
                Rhythm(Collector(engine, self._leader, blobs), 0.0),
                Rhythm(Forecaster(engine, self._leader), FORECAST_SECONDS),
                Rhythm(
                    Classifier(engine, self._leader, types, settings.served_pool_names),
                    CLASSIFY_SECONDS,
                ),
                *observing_roles(engine, self._leader),
            ],
        )

    def run(self, stop: threading.Event) -> None:
        """Turn until ``stop`` is set, then hand over at once."""
        self._housekeeping.start()
        away = False
        while not stop.is_set():
            try:
                touched = self.run_once(time.monotonic())
                away = False
                stop.wait(BUSY_SECONDS if touched else IDLE_SECONDS)
            except StateStoreError as error:
                if not away:
                    logger.warning("the state store is away: %s", error)
                away = True
                stop.wait(AWAY_SECONDS)
                # Workers come back too: let them renew their leases and hand in their results.
                self._reaping.due = time.monotonic() + REAP_REST_SECONDS
        self._publisher.close()
        try:
            self._leader.resign()
            leave(self._engine, self._name)
        except StateStoreError as error:
            logger.warning("could not hand over: %s", error)
        self._housekeeping.stop()

    def run_once(self, now: float) -> int:
        """Call every role that is due; how many jobs were touched."""
        touched = 0
        for rhythm in self._rhythms:
            if now < rhythm.due or not (rhythm.always or self._leader.epoch):
                continue
            rhythm.due = now + rhythm.every_seconds
            try:
                touched += rhythm.role.run_once(now)
            except StatementTooSlow as error:
                logger.warning("%s waits for a lock: %s", type(rhythm.role).__name__, error)
                rhythm.due = time.monotonic() + SLOW_SECONDS
            except StateStoreError:
                raise  # everybody's trouble
            except Exception:  # one role's trouble must not keep the others from their work
                logger.exception("%s failed", type(rhythm.role).__name__)
                rhythm.due = now + FAILED_SECONDS
        return touched
