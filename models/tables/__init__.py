"""The tables, as SQLAlchemy sees them. Hot statements are written out beside their callers."""

from models.tables.base import Base
from models.tables.jobs import Application, Attempt, Checkpoint, IdempotencyKey, Job, JobCount
from models.tables.line import Arrival, ExpressLane, Prediction, Schedule, Share
from models.tables.processes import DesiredWorkers, Leader, Process
from models.tables.samples import PoolSample
from models.tables.tenants import ApiKey, RateBucket, Refusal, Tenant, TenantLimit, Usage
from models.tables.watch import Circuit, Event, MeasuredType, Quota, Tally, Verdict

__all__ = [
    "ApiKey",
    "Application",
    "Arrival",
    "Attempt",
    "Base",
    "Checkpoint",
    "Circuit",
    "DesiredWorkers",
    "Event",
    "ExpressLane",
    "IdempotencyKey",
    "Job",
    "JobCount",
    "Leader",
    "MeasuredType",
    "PoolSample",
    "Prediction",
    "Process",
    "Quota",
    "RateBucket",
    "Refusal",
    "Schedule",
    "Share",
    "Tally",
    "Tenant",
    "TenantLimit",
    "Usage",
    "Verdict",
]
