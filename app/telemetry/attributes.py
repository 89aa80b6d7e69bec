"""Names of attributes: those of OpenTelemetry's messaging conventions, and our own."""

from __future__ import annotations

from typing import Final

#: ``messaging.system``: jobs are queued in PostgreSQL; the broker only carries references.
SYSTEM: Final = "fairline"

MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"
#: Buckets of the conventions for messaging and HTTP, in seconds; and for models, in seconds and
#: in tokens.
OPERATION_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)
MODEL_BOUNDS: Final = tuple(0.01 * 2**power for power in range(14))
TOKEN_BOUNDS: Final = tuple(4**power for power in range(14))

MODEL_OPERATION: Final = "gen_ai.operation.name"
MODEL_PROVIDER: Final = "gen_ai.provider.name"
MODEL_ASKED: Final = "gen_ai.request.model"
MODEL_ANSWERED: Final = "gen_ai.response.model"
TOKEN_TYPE: Final = "gen_ai.token.type"

JOB_ID: Final = "fairline.job.id"
#: Of a batch, the first ones.
JOB_IDS: Final = "fairline.job.ids"
JOB_TYPE: Final = "fairline.job.type"
LEASE: Final = "fairline.job.lease"
ATTEMPT: Final = "fairline.job.attempt"
CRASHES: Final = "fairline.job.crashes"
REPLAYS: Final = "fairline.job.replays"
WAIT_SECONDS: Final = "fairline.job.wait_seconds"
TENANT_ID: Final = "fairline.tenant.id"
POOL: Final = "fairline.pool"
STATE: Final = "fairline.state"
OUTCOME: Final = "fairline.outcome"
CODE: Final = "fairline.code"
#: An idempotency key was used before, so nothing was inserted.
REPEATED: Final = "fairline.repeated"
#: Jobs that were dispatched in the request.
EXPRESS: Final = "fairline.express_jobs"
