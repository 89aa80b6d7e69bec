"""Load by hand: ``locust -f loadtest/locustfile.py``, then open the web page that it names.

Users: ``Submitter`` sends ``--rate`` submissions per second by a clock, whatever the answers;
``SwarmClient`` submits three, polls them each second and starts over; ``Applicant`` polls as the
server advises. Without a page: ``--headless -u 20 -r 5 -t 1m SwarmClient``, or
``--headless --rate 5 -t 1m Submitter``.

Shapes: ``--shape steps``, ``ramp``, ``spike`` or ``soak``, up to ``--rate`` for the Submitter and
up to ``-u`` for the others; or another such as ``--shape 2:20,4:20,0-8:30``. ``--host`` is the URL
of Fairline, ``--key`` (or ``FAIRLINE_KEY``) an API key.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from locust import FastHttpUser, between, events, task

# Locust puts the folder of this file on the path, not the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loadtest.users import run
from loadtest.users.run import Custom, Ramp, Soak, Spike, Steps
from loadtest.users.submitter import Submitter
from loadtest.users.swarm_client import SwarmClient

__all__ = ["Applicant", "Custom", "Ramp", "Soak", "Spike", "Steps", "Submitter", "SwarmClient"]

ROLES = ("engineer", "designer", "analyst")
ENDED = ("scored", "failed", "withdrawn", "expired")
PATIENCE_SECONDS = 120.0


class Applicant(FastHttpUser):
    """Submits, and polls as the server advises: a closed loop for a Fairline by hand."""

    wait_time = between(0.5, 2.0)

    def on_start(self) -> None:
        """With the key, if one was given."""
        key = self.environment.parsed_options.key
        self.client.auth_header = f"Bearer {key}" if key else None

    @task(5)
    def apply(self) -> None:
        began = time.perf_counter()
        body = {
            "candidate": f"Applicant {random.randrange(1_000_000)}",
            "role": random.choice(ROLES),
            "payload": f"{random.randrange(30)} years of keeping systems running.",
        }
        with self.client.post("/applications", json=body, catch_response=True) as answer:
            if answer.status_code != 202:
                answer.failure(f"status {answer.status_code}")
                return
            application_id = answer.json()["id"]
            pause = float(answer.headers.get("Retry-After", 1))
        status = self.poll(application_id, pause)
        events.request.fire(  # type: ignore[no-untyped-call]  # locust's own is untyped
            request_type="JOB",
            name="submit to end",
            response_time=1000 * (time.perf_counter() - began),
            response_length=0,
            exception=None if status == "scored" else RuntimeError(f"ended {status}"),
            context={},
        )

    def poll(self, application_id: str, pause: float) -> str:
        """Poll until it has ended; its last status."""
        status = "pending"
        headers: dict[str, str] = {}
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while status not in ENDED and time.perf_counter() < deadline:
            time.sleep(pause)
            with self.client.get(
                f"/applications/{application_id}",
                name="/applications/{id}",
                headers=headers,
                catch_response=True,
            ) as answer:
                if answer.status_code not in (200, 304):
                    answer.failure(f"status {answer.status_code}")
                    continue
                answer.success()
                status = answer.headers.get("Fairline-Status", status)
                if etag := answer.headers.get("ETag"):
                    headers = {"If-None-Match": etag}
                pause = float(answer.headers.get("Retry-After", 1))
        return status

    @task(1)
    def leaderboard(self) -> None:
        self.client.get(f"/leaderboard?role={random.choice(ROLES)}", name="/leaderboard")


run.listen()
