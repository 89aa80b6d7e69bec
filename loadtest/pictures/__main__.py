"""``python -m loadtest.pictures``: start a stack, let it work, take the README's pictures."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from sqlalchemy import Engine

from app.stack.spec import PROJECT_ROOT
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from loadtest.chaos.client import Api
from loadtest.chaos.stack import embedded_stack
from loadtest.pictures.camera import PHONE, TALL, Shot, opened_camera
from loadtest.report import Screen

#: Name and terms of the tenants besides ``demo``.
TENANTS = (
    ("northwind", Change({"tier": "enterprise", "weight": 40.0})),
    ("birchwood", Change({"tier": "pro", "weight": 20.0}, {"medium": {"in_flight": 12}})),
    ("cedar-labs", Change({"tier": "standard", "submit_per_second": 4.0, "submit_burst": 8.0})),
    ("driftwood", Change({"tier": "free"})),
)
SCHEDULES = (
    ("nightly import", "15 2 * * *"),
    ("weekly report", "0 7 * * 1"),
    ("hourly digest", "0 * * * *"),
)
ROLES = ("platform engineer", "data engineer", "site reliability engineer")
PEOPLE = (
    "Ada Lovelace", "Grace Hopper", "Alan Turing", "Katherine Johnson", "Edsger Dijkstra",
    "Barbara Liskov", "Donald Knuth", "Radia Perlman", "Ken Thompson", "Frances Allen",
    "Mary Jackson", "John Backus", "Jean Bartik", "Niklaus Wirth", "Karen Spärck Jones",
    "Tony Hoare", "Margaret Hamilton", "Leslie Lamport", "Adele Goldberg", "Dennis Ritchie",
)  # fmt: skip
WORK = (
    "Led the move of a payment service to event sourcing; error rate fell from 0.9 % to 0.02 %.",
    "Wrote the scheduler that shares 4,000 cores between forty teams, and its simulator.",
    "Cut the nightly batch from six hours to forty minutes by measuring before changing anything.",
    "Taught the on-call course for three years; pages per week went from 31 to 4.",
    "Maintains a parser that 1,200 projects depend on, with a fuzzer that found 61 bugs.",
)
STRENGTHS = (
    "Asks what the failure looks like before writing the happy path.",
    "Reads the source of the libraries in use.",
    "Writes decisions down, with what was rejected.",
    "Pairs with whoever is on call.",
)


class Traffic:
    """Submits jobs of several tenants until it is stopped."""

    def __init__(self, port: int, engine: Engine) -> None:
        self._port = port
        self._stop = threading.Event()
        self._chance = random.Random(7)
        choice = self._chance.choice
        self.keys = {"demo": ""}
        for name, terms in TENANTS:
            fields = {"tier_limits": False, **terms.fields}
            create_tenant(engine, name, replace(terms, fields=fields))
            self.keys[name] = issue_key(engine, name, "production").key
            issue_key(engine, name, "staging")
        self._threads = [
            threading.Thread(target=self._often, args=(seconds, act), daemon=True)
            for seconds, act in (
                (0.50, lambda: self.apply(choice(PEOPLE), choice(ROLES))),
                (0.06, lambda: self._job("northwind", "echo", {"n": self._chance.random()})),
                (0.50, lambda: self._job("northwind", "sleep", {"seconds": 2.2})),
                (0.50, lambda: self._job("birchwood", "sleep", {"seconds": 1.6})),
                (0.50, lambda: self._job("cedar-labs", "sleep", {"seconds": 1.2})),
                (1.20, lambda: self._job("driftwood", "sleep", {"seconds": 0.8})),
                (2.00, lambda: self._job("birchwood", "fail", {"times": 0})),
                (40.0, lambda: self._job("birchwood", "fail", {"class": "PERMANENT"})),
                (55.0, lambda: self._job("cedar-labs", "fail", {"class": "POISON"})),
                (14.0, lambda: self._job("northwind", "count", {"to": 40, "seconds_each": 0.4})),
            )
        ]

    def start(self) -> None:
        for name, cron in SCHEDULES:
            body = {"name": name, "cron": cron, "type": "echo", "timezone": "Europe/Berlin"}
            self.call("northwind", "/schedules", body)
        for thread in self._threads:
            thread.start()

    def flood(self) -> None:
        """More jobs of every tenant than the slots can run: now the weights decide."""
        jobs = [{"type": "sleep", "payload": {"seconds": 1.5}} for _ in range(400)]
        for name in self.keys:
            self.call(name, "/jobs/batch", {"jobs": jobs})

    def retried(self) -> str:
        """A job that needs three attempts; its id."""
        body = {"type": "fail", "payload": {"class": "APP_ERROR", "times": 2}}
        return str(self.call("birchwood", "/jobs", body)["id"])

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)

    def apply(self, candidate: str, role: str) -> str:
        """One application of ``demo``; its id."""
        experience = " ".join([*self._chance.sample(WORK, 2), self._chance.choice(STRENGTHS)])
        payload = f"{self._chance.randint(2, 30)} years. {experience}"
        body = {"candidate": candidate, "role": role, "payload": payload}
        return str(self.call("demo", "/applications", body)["id"])

    def call(self, tenant: str, path: str, body: Any) -> Any:
        """Post as a tenant; rejections are part of the picture."""
        key = self.keys[tenant]
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with Api(self._port) as api:
            return api.call("POST", path, body, headers).document

    def _job(self, tenant: str, job_type: str, payload: dict[str, Any]) -> None:
        self.call(tenant, "/jobs", {"type": job_type, "payload": payload})

    def _often(self, seconds: float, act: Callable[[], object]) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            # Jittered, as real traffic is.
            due += seconds * self._chance.uniform(0.3, 1.7)
            act()


#: Pages of a stack that has more jobs than slots.
FLOODED = (
    Shot("console-tenants", "/console/tenants?pool=medium"),
    Shot("console-workers", "/console/workers", "dark"),
)
#: How long the stack works before the first picture, so that its charts show something.
WORK_SECONDS = 240
#: … and how long after the flood, so that shares are what the weights say.
FLOOD_SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=WORK_SECONDS)
    parser.add_argument("--into", type=Path, default=PROJECT_ROOT / "docs/images")
    given = parser.parse_args()
    console = Console(highlight=False)
    console.print("Starting a stack …")
    with embedded_stack(WORKERS_MEDIUM="2") as stack, stack.engine() as engine:
        traffic = Traffic(stack.port, engine)
        traffic.start()
        job = traffic.retried()
        try:
            with (
                Screen(console) as screen,
                opened_camera(f"http://127.0.0.1:{stack.port}", given.into) as camera,
            ):
                screen.wait("The stack is at work", given.seconds)
                for shot in calm_shots(traffic, job):
                    console.print(f"  {camera.take(shot)}")
                traffic.flood()
                screen.wait("… and has more than it can do", FLOOD_SECONDS)
                for shot in FLOODED:
                    console.print(f"  {camera.take(shot)}")
        finally:
            traffic.stop()


def calm_shots(traffic: Traffic, job: str) -> tuple[Shot, ...]:
    """Pages of a stack that has enough slots for its load."""
    application = traffic.apply("Ada Lovelace", ROLES[0])
    return (
        Shot("console-overview", "/", size=TALL),
        Shot("console-overview-dark", "/", "dark", size=TALL),
        Shot("console-jobs", "/console/jobs"),
        Shot("console-job", f"/console/jobs/{job}"),
        Shot("console-leaderboard", f"/console/leaderboard?tenant=demo&role={ROLES[0]}"),
        Shot("console-candidate", f"/console/leaderboard/{application}"),
        Shot("console-phone", "/", size=PHONE),
        Shot("tenant-page", "/tenant", key=traffic.keys["birchwood"]),
    )


if __name__ == "__main__":
    main()
