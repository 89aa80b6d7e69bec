"""Celery's settings, the same for API, scheduler and workers.

All of them must load this module: Celery knows about quorum queues only from the queues
declared here. The broker carries hints, so results, retries, delays and priorities are
switched off: they live in the row.
"""

from __future__ import annotations

import sys

from kombu.transport import TRANSPORT_ALIASES

from app.broker.queues import job_queue
from app.config import settings
from models.pools import POOLS

_settings = settings()

# By name, because a green worker reads this module before it is green.
TRANSPORT_ALIASES["filesystem"] = "app.broker.filesystem:Transport"
broker_url, broker_transport_options = _settings.broker
broker_connection_timeout = 2
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
# RabbitMQ closes the channel of a consumer that holds a message for 30 minutes, as one whose
# slots are all busy that long does. Celery would end the worker; it is to open another channel.
broker_channel_error_retry = True
# Celery 5.7 drains its event connection for 100 ms a turn while AMQP heartbeats are on, which holds
# a gevent worker to ten messages a second. The consumer switches them on for the connection that
# messages come by, and for no other.
broker_heartbeat = 0
worker_consumer = "app.broker.consumer:JobConsumer"

# Slices of a pool are added by name: see app/broker/amqp.py.
task_queues = [job_queue(name) for name in POOLS]
task_default_queue = "medium"
task_create_missing_queues = False
task_default_delivery_mode = "persistent"

task_serializer = "json"
accept_content = ["json"]
task_ignore_result = True
result_backend = None
task_acks_late = True
# A message whose worker died is redelivered; the row decides whether it still means anything.
# Prefork workers acknowledge early instead (tasks/entry.py): there the lease alone brings it back.
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
# After a lost connection Celery would restore the prefetch count from the greenlet of a job
# while another one reads the same socket, which gevent refuses.
worker_enable_prefetch_count_reduction = False
worker_disable_rate_limits = True
worker_enable_remote_control = True
worker_hijack_root_logger = False
worker_proc_alive_timeout = 30
task_send_sent_event = False
# Flower reads task events; sending them is about a fifth of a busy worker's profile.
worker_send_task_events = "flower" not in sys.argv
enable_utc = True
timezone = "UTC"
