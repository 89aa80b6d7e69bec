"""Every metric of ``/metrics``: name, labels and help.

Labels are bounded: pools, states, outcomes, job types, dependencies and living processes, never
tenants. Everything about the system is read from the tables.
"""

from __future__ import annotations

from app.reads.gauges import DEAD_LETTERS_COUNTED

#: What every API instance reports about itself.
OWN_METRICS = {
    "fairline_build_info{revision,python}": "Always 1; revision is a digest of the source code.",
    "fairline_reports_system": "1 if this API instance reports the metrics of the whole system:"
    " one of them does, so that sums over all instances are right.",
    "fairline_read_lag_seconds": "How far the standby that lists are read from is behind, at most;"
    " grows while none answers. Absent until it is measured, from the first request for it on, and"
    " without FAIRLINE_READ_DATABASE_URL.",
    "fairline_disk_free_bytes{volume}": "Free space where the blob folder is; none with S3.",
    "fairline_disk_size_bytes{volume}": "Size of the file system where the blob folder is.",
}
#: Those of them that are the same from every cell: reported once by a process that serves several.
OF_PROCESS = frozenset(
    {"fairline_build_info", "fairline_disk_free_bytes", "fairline_disk_size_bytes"}
)
#: What a process that serves several cells reports about them; all others, but for OF_PROCESS,
#: have the label ``cell`` then.
CELL_METRICS = {
    "fairline_cell_reachable{cell}": "1 if the cell responded, 0 if it did not.",
}
#: Metrics of the whole system, in the order of the page, with their labels and their help;
#: ``_total`` are counters.
METRICS = {
    # Jobs.
    "fairline_queue_depth{pool}": "Jobs waiting in the queue.",
    "fairline_jobs_in_flight{pool,state}": "Jobs by state: dispatched and running ones are"
    " in flight; scheduled ones are not due yet.",
    "fairline_oldest_job_age_seconds{pool}": "Age of the oldest queued job; with thousands of"
    " tenants and priorities, at least.",
    "fairline_wait_objective_seconds{pool}": "99 of 100 jobs should start within this time of"
    " being due.",
    "fairline_wait_duration_seconds{pool}": "Time from when a job was due to its first start.",
    "fairline_run_duration_seconds{pool}": "Duration of runs, whatever their outcome.",
    "fairline_oldest_due_unpromoted_age_seconds{pool}": "Age of the oldest due job not yet queued.",
    "fairline_jobs_admitted_total{pool}": "Jobs submitted or replayed.",
    "fairline_jobs_dispatched_total{pool}": "Jobs handed to the broker; every dispatch of a job"
    " counts.",
    "fairline_jobs_retried_total{pool,class}": "Runs that failed and are followed by another, by"
    " failure class.",
    "fairline_jobs_total{pool,outcome}": "Jobs ended, by outcome; one that is replayed ends again,"
    " one that is discarded counts as dead and as cancelled.",
    "fairline_refusals_total{code}": "Submissions and other requests rejected, by error code.",
    "fairline_dead_letters{type}": f"Dead letters; at most {DEAD_LETTERS_COUNTED} are counted.",
    # Limits.
    "fairline_tier_submit_per_second{tier}": "Submissions per second that a tenant of a tier may"
    " make by default; a tier that is missing has no limit.",
    "fairline_tier_in_flight_limit{tier,pool}": "Jobs in flight that a tenant of a tier may have by"
    " default; a tier that is missing has no limit.",
    # Workers.
    "fairline_pool_slots{pool,state}": "Slots of live workers.",
    "fairline_workers_recycled_total{pool,reason}": "Worker processes that were killed because a"
    " run broke a limit, or lost: silent for five minutes.",
    "fairline_desired_workers{pool}": "Workers that a pool should have.",
    "fairline_most_workers{pool}": "Workers that a pool may have at most.",
    "fairline_living_workers{pool}": "Workers that a pool has, as counted by the autoscaler.",
    "fairline_db_pool{process,state}": "Database connections of a process; waiting is the peak"
    " since its last heartbeat.",
    # The scheduler.
    "fairline_leader_silent_seconds": "Time since the last sign of life of a leading scheduler.",
    "fairline_largest_deficit_seconds{pool}": "Slot time that a pool owes the tenant it owes most,"
    " of those with queued jobs.",
    # The database.
    "fairline_oldest_snapshot_seconds": "Age of the oldest open transaction of the database; dead"
    " rows cannot be removed meanwhile.",
    "fairline_oldest_snapshot_transactions": "Age of the oldest snapshot in transactions, also of"
    " replication slots and standbys.",
    # Failures and restrictions.
    "fairline_circuit_open{dependency}": "1 while a dependency is not called, 0.5 while probed.",
    "fairline_job_type_quarantined{type}": "1 for a mostly failing job type, with fewer attempts.",
    "fairline_throttled_tenants{pool}": "Tenants whose jobs kill workers and run one at a time.",
    "fairline_pool_violations{type}": "Runs in the last hour that exceeded the pool's limit.",
    "fairline_runs": "Runs that succeeded or failed in the last ten minutes.",
    "fairline_retries": "Retries granted in the last ten minutes.",
    "fairline_wait_prediction_error_ratio{pool}": "Mean error of predicted starts in the last"
    " hour, relative to the wait.",
    "fairline_wait_predictions{pool}": "Number of predictions in that mean.",
    "fairline_express_degraded": "1 while there is no scheduler and an API process dispatches,"
    " without fair share.",
    # Durations of job types.
    "fairline_job_type_p95_seconds{type}": "95th percentile of recent run times of a job type.",
    "fairline_job_type_moved{type,from,to}": "1 for a job type moved away from its declared pool.",
    # Schedules.
    "fairline_schedules{state}": "Schedules; one that has ended has no further ticks.",
    "fairline_oldest_due_tick_age_seconds": "Age of the oldest due tick that is not yet a job.",
    # Quotas of dependencies.
    "fairline_quota_per_minute{dependency,kind}": "What a dependency accepts per minute, declared"
    " or learned.",
    "fairline_quota_remaining{dependency,kind}": "Remaining quota in the last response.",
    "fairline_quota_closed{dependency}": "1 while a dependency that rejected calls is not called.",
    "fairline_quota_refused_total{dependency}": "Calls rejected because of a dependency's quota.",
}
