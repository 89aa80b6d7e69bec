"""Scheduler process: calls every role at its interval, only while this process leads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery import Celery
from sqlalchemy import Engine

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.broker.publish import Publisher
from app.broker.queue_counts import QueueCounts
from app.config import Settings
from app.policy.scaling import policy_of
from app.reads.estimates import Estimates
from app.scheduler.autoscaler import EVERY_SECONDS, Autoscaler
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.dispatching.quotas import QuotaPacers
from app.scheduler.dispatching.reconciler import RECONCILE_SECONDS, ShareReconciler
from app.scheduler.idle import WorkLooks, next_turn_seconds
from app.scheduler.maintenance.collector import Collector
from app.scheduler.maintenance.eraser import ERASE_IDLE_SECONDS, ERASE_SECONDS, Eraser
from app.scheduler.maintenance.feed_generations import FeedGenerations
from app.scheduler.maintenance.forecaster import FORECAST_SECONDS, Forecaster
from app.scheduler.maintenance.limit_keeper import KEEP_SECONDS, LimitKeeper
from app.scheduler.maintenance.lost_messages import FIND_SECONDS, LostMessages
from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.maintenance.recorder import RECORD_SECONDS, Recorder
from app.scheduler.maintenance.recurring_jobs import TICK_SECONDS, RecurringJobs
from app.scheduler.maintenance.replayer import REPLAY_SECONDS, Replayer
from app.scheduler.maintenance.retirer import RETIRE_SECONDS, Kept, Retirer
from app.scheduler.maintenance.snapshot_watch import WATCH_SECONDS, SnapshotWatch
from app.scheduler.maintenance.tenant_remover import REMOVE_SECONDS, TenantRemover
from app.scheduler.protection.circuits import Circuits
from app.scheduler.protection.classifier import CLASSIFY_SECONDS, Classifier
from app.scheduler.protection.restrictions import (
    JUDGE_SECONDS,
    Quarantine,
    RetryBudgets,
    Spikes,
    Throttles,
)
from app.scheduler.role import (
    Housekeeping,
    Role,
    RoleQueries,
    TimedRole,
    run_due,
)
from app.telemetry.hooks import system_meters
from models.blobs import BlobStore, open_blobs
from models.job_counts import FOLD_SECONDS, RECOUNT_SECONDS, CountFolder, Recounter
from models.jobs.expire import PREPARED as EXPIRE
from models.leadership import RENEW_SECONDS, Leader
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS, Presence, announce, leave, process_name
from models.store.errors import StateStoreError
from models.tallies import Tallies
from tasks.registry import JobType, load_types
from tasks.retry.guards import THROTTLE_CRASHES

if TYPE_CHECKING:
    from app.scheduler.cell_roles import CellRoles

logger = logging.getLogger(__name__)

#: Pause after a turn that found something to do.
BUSY_SECONDS = 0.002
#: Pause of roles that have nothing to do without jobs, while there are none.
CALM_SECONDS = 10.0
#: Pause while the state store is unavailable.
AWAY_SECONDS = 0.5
DAY_SECONDS = 86_400.0
#: How long single failures may put off the reaper, together.
MOST_PUT_OFF_SECONDS = 30.0
#: Counts are written this often.
COUNT_SECONDS = 2.0
#: Roles that add up counts of tenants pause so many times as long as that took.
PAUSE_FACTOR = 200.0


@dataclass(frozen=True, slots=True)
class Announcer:
    """Reports that this scheduler is alive."""

    engine: Engine
    name: str

    def run_once(self, now: float) -> int:
        announce(self.engine, Presence(self.name, "scheduler"))
        return 0


@dataclass(frozen=True, slots=True)
class CountWriter:
    """Writes what this scheduler has counted."""

    engine: Engine
    tallies: Tallies

    def run_once(self, now: float) -> int:
        self.tallies.write(self.engine)
        return 0


class Expirer(RoleQueries):
    """Expires jobs that wait past their ``not_after``.

    Dispatch and claim do so too; this is for pools without workers and for late schedules.
    """

    def run_once(self, now: float) -> int:
        return self._write(EXPIRE)


def protection_roles(
    engine: Engine,
    leader: Leader,
    types: Mapping[str, JobType],
    throttle_crashes: int = THROTTLE_CRASHES,
) -> list[TimedRole]:
    """Roles that watch failures and restrict what causes them, by the policies of tasks.retry.

    Each change is one conditional statement, with its event. What they write is obeyed elsewhere:
    see :mod:`app.scheduler.dispatching.held_back` and :mod:`tasks.worker.rules`.
    """
    dependencies = {one.dependency for one in types.values() if one.dependency}
    return [
        TimedRole(Circuits(engine, leader, dependencies), 1.0, idle_seconds=CALM_SECONDS),
        TimedRole(Throttles(engine, leader, throttle_crashes), 1.0, idle_seconds=CALM_SECONDS),
        TimedRole(Quarantine(engine, leader), 10.0, pause_factor=PAUSE_FACTOR),
        TimedRole(Spikes(engine, leader), 30.0),
    ]


def telemetry_roles(engine: Engine, leader: Leader) -> list[TimedRole]:
    """The reader of gauges that describe the whole system; none without telemetry."""
    meters = system_meters()
    if meters is None:
        return []
    from app.scheduler.maintenance.observer import OBSERVE_SECONDS, Observer

    return [TimedRole(Observer(meters, engine, leader), OBSERVE_SECONDS)]


def open_cell_roles(
    engine: Engine, leader: Leader, settings: Settings, name: str, blobs: BlobStore
) -> CellRoles | None:
    """What it does as one of several cells; None: there are no others."""
    if not settings.registry_url:
        return None
    from app.scheduler.cell_roles import CellRoles

    keep_seconds = settings.keep_finished_days * DAY_SECONDS
    return CellRoles(engine, leader, settings, name, blobs, keep_seconds)


class SchedulerService:
    def __init__(self, engine: Engine, celery: Celery, settings: Settings) -> None:
        self._engine = engine
        self._name = process_name("scheduler")
        self._leader = leader = Leader(engine, self._name)
        self._tallies = Tallies()
        self._publisher = Publisher(celery, settings.publish_seconds, self._tallies)
        types = load_types(settings.job_modules, demo=settings.demo_types)
        blobs = open_blobs(settings.blob_url)
        self._cells = cells = open_cell_roles(engine, leader, settings, self._name, blobs)
        self._reaping = TimedRole(
            Reaper(engine, leader, types, self._tallies), 1.0, idle_seconds=CALM_SECONDS
        )
        lost = LostMessages(engine, leader, QueueCounts(celery))
        self._roles = [
            TimedRole(leader, RENEW_SECONDS, always=True),
            TimedRole(Announcer(engine, self._name), PRESENCE_SECONDS, always=True),
            *([TimedRole(lost, FIND_SECONDS, idle_seconds=CALM_SECONDS)] if settings.amqp else []),
            self._reaping,
            TimedRole(Expirer(engine, leader), 1.0, idle_seconds=CALM_SECONDS),
            *protection_roles(engine, leader, types, settings.throttle_crashes),
            *self._working_roles(types, settings),
            TimedRole(Recorder(engine, leader), RECORD_SECONDS),
        ]
        kept = Kept(
            finished=settings.keep_finished_days * DAY_SECONDS,
            dead=settings.keep_dead_days * DAY_SECONDS,
            events=settings.keep_events_days * DAY_SECONDS,
            keys=settings.keep_keys_hours * 3600.0,
            scored=settings.keep_scored_days * DAY_SECONDS,
            audit=settings.keep_audit_days * DAY_SECONDS,
        )
        classifier = Classifier(engine, leader, types, settings.served_pool_names)
        collector, remover = Collector(engine, leader, blobs), TenantRemover(engine, leader, blobs)
        eraser = Eraser(engine, leader, blobs)
        if cells is not None:
            collector.databases, eraser.others = cells.databases, cells.others
            remover.on_removed = cells.forget
        self._housekeeping = Housekeeping(
            leader,
            [
                TimedRole(FeedGenerations(engine), PRESENCE_SECONDS, backs_off=True),
                # Not beside dispatching, which would wait for a row that somebody has locked.
                TimedRole(CountWriter(engine, self._tallies), COUNT_SECONDS),
                TimedRole(Retirer(engine, leader, blobs, kept), 0.0, idle_seconds=RETIRE_SECONDS),
                TimedRole(collector, 0.0),
                TimedRole(eraser, ERASE_SECONDS, idle_seconds=ERASE_IDLE_SECONDS),
                TimedRole(remover, 0.0, idle_seconds=REMOVE_SECONDS),
                TimedRole(Forecaster(engine, leader), FORECAST_SECONDS),
                TimedRole(classifier, CLASSIFY_SECONDS, pause_factor=PAUSE_FACTOR),
                TimedRole(RetryBudgets(engine, leader), JUDGE_SECONDS, pause_factor=PAUSE_FACTOR),
                TimedRole(SnapshotWatch(engine, leader), WATCH_SECONDS),
                TimedRole(LimitKeeper(settings.broker_url), KEEP_SECONDS),
                TimedRole(Recounter(engine), RECOUNT_SECONDS, backs_off=True),
                *telemetry_roles(engine, leader),
            ],
        )

    def _working_roles(self, types: Mapping[str, JobType], settings: Settings) -> list[TimedRole]:
        """Roles that make, queue and dispatch jobs, and two that depend on their state."""
        engine, leader = self._engine, self._leader
        served = settings.served_pool_names
        tenant_limits = TenantLimits(engine, SubmissionLimits(**settings.submission_limits))
        recurring = RecurringJobs(engine, leader, types, served, tenant_limits)
        replayer = Replayer(engine, leader, tenant_limits)
        folder = CountFolder(engine)
        queues = PoolQueues(engine, leader, folder)
        pacers = QuotaPacers(engine, leader, types, settings.quotas)
        pools = Pools(engine, queues, pacers.allowances)
        estimates = Estimates(engine)
        dispatcher = Dispatcher(engine, leader, self._publisher, pools, estimates, pacers)
        scaling = {
            pool: policy_of(pool, settings.scale_min, settings.scale_max, settings.scale_policy)
            for pool in POOLS
        }
        reconciler = ShareReconciler(engine, leader, queues, estimates)
        autoscaler = Autoscaler(engine, leader, pools, scaling)
        looks = [
            TimedRole(self._after_check(recurring), TICK_SECONDS),
            TimedRole(replayer, REPLAY_SECONDS),
            TimedRole(Promoter(engine, leader, pools, settings.promote_per_second), 0.05),
            TimedRole(folder, FOLD_SECONDS),
            TimedRole(self._after_check(dispatcher), 0.0),
        ]
        self._looks = WorkLooks(
            engine,
            leader,
            looks,
            # Whose queues are of an earlier lease has not looked under this one.
            look_within=lambda: (
                dispatcher.look_within if queues.current and not replayer.has_work else 0.0
            ),
            seen=lambda: folder.finished,
            reach_broker=dispatcher.reach_broker,
        )
        return [
            *looks,
            TimedRole(reconciler, RECONCILE_SECONDS, idle_seconds=CALM_SECONDS),
            TimedRole(autoscaler, EVERY_SECONDS, idle_seconds=CALM_SECONDS),
        ]

    def _after_check(self, role: Role) -> Role:
        return role if self._cells is None else self._cells.after_check(role)

    def run(self, stop: threading.Event) -> None:
        """Call the roles until ``stop`` is set, then hand over at once."""
        self._housekeeping.start()
        self._looks.start()
        if self._cells is not None:
            self._cells.start()
        away = False
        while not stop.is_set():
            try:
                self._turn(stop)
                away = False
            except StateStoreError as error:
                stop.wait(AWAY_SECONDS)
                # Workers come back too: let them renew their leases and settle their jobs. Not for
                # ever: a role that fails every other turn must not stop the reaper.
                waits = time.monotonic() - self._reaping.turn_at
                self._reaping.put_off(again=away or waits < MOST_PUT_OFF_SECONDS)
                if not away:
                    logger.warning("the state store is unavailable: %s", error)
                away = True
        self._publisher.close()
        self._looks.close()
        try:
            self._leader.resign()
            self._tallies.write(self._engine)
            leave(self._engine, self._name)
        except StateStoreError as error:
            logger.warning("could not hand over: %s", error)
        self._housekeeping.stop()
        if self._cells is not None:
            self._cells.close()

    def _turn(self, stop: threading.Event) -> None:
        """Call the roles that are due, then pause until the next are."""
        now = time.monotonic()
        self._looks.begin_turn(now, self._roles)
        idle = self._looks.idle
        if run_due(self._roles, self._leader, now, reaping=self._reaping, idle=idle):
            if idle and self._looks.found_work(now):
                self._looks.end_idling(now, self._roles)
            stop.wait(BUSY_SECONDS)
            return
        leads = self._leader.epoch is not None
        if leads and self._looks.put_off(now) and idle:  # nobody announced them
            self._looks.end_idling(now, self._roles)
        self._looks.rest(next_turn_seconds(self._roles, leads, time.monotonic()), stop)
