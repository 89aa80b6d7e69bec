"""What each contender promises, in plain words. Written from their documentation and sources."""

from __future__ import annotations

from loadtest.report import Table

GUARANTEES = Table(
    "What each promises",
    ("", "Fairline", "plain Celery", "Dramatiq", "Procrastinate"),
    (
        (
            "durable before the answer?",
            "yes: the row is committed",
            "yes: row committed, then message confirmed; a crash between them leaves a row that "
            "nobody runs",
            "no by default; with `confirm_delivery` the broker has stored it",
            "yes: the row is committed",
        ),
        (
            "worker killed -9",
            "runs again when its lease is over",
            "runs again at once with `acks_late`; lost by default",
            "runs again at once",
            "stays `doing` for ever by default; runs again with the periodic task of its guide",
        ),
        (
            "run more than once?",
            "may be, but only one outcome counts: a run without its lease cannot write",
            "may be; whoever writes last wins",
            "may be; the actor must bear it",
            "may be; the first one that ends wins",
        ),
        (
            "result stored?",
            "yes, with every attempt, in the row",
            "only what the task writes itself; result backends exist",
            "no; result backends exist",
            "state and attempts in the row, no result",
        ),
        (
            "after a restart of the broker",
            "nothing is lost: the rows are the line, the broker holds hints",
            "confirmed messages are there again",
            "persistent messages are there again; unconfirmed ones may not be",
            "has no broker",
        ),
        (
            "while the broker is away",
            "202: the row is enough",
            "an error after the row was written",
            "an error",
            "has no broker",
        ),
        (
            "fair between tenants?",
            "yes, by weight, with limits and quotas",
            "no: first come, first served",
            "no: first come, first served",
            "no: priorities and locks",
        ),
        (
            "retries",
            "by class of failure, decided from the row",
            "as written into the task",
            "20 with backoff by default",
            "as written into the task",
        ),
    ),
)
