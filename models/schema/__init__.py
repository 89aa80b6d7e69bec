"""The tables, as SQLAlchemy sees them. Hot statements are written out beside their callers."""

from models.schema.audit import AuditRow
from models.schema.base import Base
from models.schema.cells import (
    AwayTenant,
    CellIdentity,
    IntakeJob,
    MoveRow,
    RegisteredCell,
    TenantCopy,
    TenantPlacement,
    TransferMark,
)
from models.schema.jobs import (
    JOB_COUNTS,
    Application,
    Attempt,
    Checkpoint,
    Erasure,
    IdempotencyKeyRow,
    Job,
    JobCountDelta,
    JobCountKey,
    JobCountSum,
    RunLogRow,
)
from models.schema.processes import DesiredWorkers, LeaderRow, PoolSample, Process
from models.schema.restrictions import (
    CircuitRow,
    Event,
    FeedGenerationRow,
    MeasuredType,
    QuotaRow,
    Tally,
    VerdictRow,
    VerdictsVersion,
)
from models.schema.scheduling import (
    Arrival,
    ExpressLane,
    Prediction,
    ReplayRow,
    ScheduleRow,
    Share,
)
from models.schema.tenants import (
    ApiKey,
    BrowserSession,
    RateBucket,
    RefusalRow,
    Tenant,
    TenantLimit,
    Usage,
)
