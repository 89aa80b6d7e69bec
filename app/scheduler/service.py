"""The loop: every role in its own rhythm, only while this process leads."""

from __future__ import annotations

import logging
import threading
import time

from celery import Celery
from sqlalchemy import Engine

from app.broker.publish import Publisher
from app.config import Settings
from app.policy.scaling import ScalingPolicy, policy_of
from app.reads.estimates import Estimates
from app.scheduler.autoscaler import EVERY_SECONDS, Autoscaler
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.dispatching.quotas import QuotaPacers
from app.scheduler.dispatching.reconciler import RECONCILE_SECONDS, ShareReconciler
from app.scheduler.maintenance.collector import Collector
from app.scheduler.maintenance.expirer import Expirer
from app.scheduler.maintenance.forecaster import FORECAST_SECONDS, Forecaster
from app.scheduler.maintenance.housekeeping import Housekeeping
from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.maintenance.recorder import Recorder
from app.scheduler.maintenance.recurring_jobs import TICK_SECONDS, RecurringJobs
from app.scheduler.maintenance.retirer import Kept, Retirer
from app.scheduler.protection.classifier import CLASSIFY_SECONDS, Classifier
from app.scheduler.protection.roles import guard_roles
from app.scheduler.role import TimedRole
from app.telemetry import system_meters
from models.blobs import open_blobs
from models.leadership import RENEW_SECONDS, Leader
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS, Presence, announce, leave, process_name
from models.store.errors import StatementTooSlow, StateStoreError
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


def policies(settings: Settings) -> dict[str, ScalingPolicy]:
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


def observing_roles(engine: Engine, leader: Leader) -> list[TimedRole]:
    """What the leader reads for gauges of the whole system; nothing without telemetry."""
    meters = system_meters()
    if meters is None:
        return []
    from app.scheduler.maintenance.observer import OBSERVE_SECONDS, Observer

    return [TimedRole(Observer(meters, engine, leader), OBSERVE_SECONDS)]


class SchedulerService:
    """One scheduler process."""

    def __init__(self, engine: Engine, celery: Celery, settings: Settings) -> None:
        self._engine = engine
        self._name = process_name("scheduler")
        self._leader = Leader(engine, self._name)
        self._publisher = Publisher(celery, settings.publish_seconds)
        types = load_types(settings.job_modules)
        queues = PoolQueues(engine, self._leader)
        pacers = QuotaPacers(engine, self._leader, types, settings.quotas)
        pools = Pools(engine, queues, pacers)
        estimates = Estimates(engine)
        self._reaping = TimedRole(Reaper(engine, self._leader, types), 1.0)
        self._roles = [
            TimedRole(self._leader, RENEW_SECONDS, always=True),
            TimedRole(Announcer(engine, self._name), PRESENCE_SECONDS, always=True),
            self._reaping,
            TimedRole(Expirer(engine, self._leader), 1.0),
            *guard_roles(engine, self._leader, types, settings.throttle_crashes),
            TimedRole(
                RecurringJobs(engine, self._leader, types, settings.served_pool_names), TICK_SECONDS
            ),
            TimedRole(Promoter(engine, self._leader, pools, settings.promote_per_second), 0.05),
            TimedRole(
                Dispatcher(engine, self._leader, self._publisher, pools, queues, estimates, pacers),
                0.0,
            ),
            TimedRole(ShareReconciler(engine, self._leader, queues, estimates), RECONCILE_SECONDS),
            TimedRole(Autoscaler(engine, self._leader, pools, policies(settings)), EVERY_SECONDS),
            TimedRole(Recorder(engine, self._leader), 0.0),
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
                TimedRole(Retirer(engine, self._leader, blobs, kept), 0.0),
                TimedRole(Collector(engine, self._leader, blobs), 0.0),
                TimedRole(Forecaster(engine, self._leader), FORECAST_SECONDS),
                TimedRole(
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
        for rhythm in self._roles:
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
