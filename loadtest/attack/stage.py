"""The attacked stack: keys are required, one tenant is the victim, another is hostile."""

from __future__ import annotations

import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
from sqlalchemy import Engine

from app.api.auth.visitors import OPERATOR_COOKIE, TENANT_COOKIE
from app.stack.programs import command
from app.tenants.changes import create_tenant, issue_key, revoke_key
from app.tenants.keys import new_key
from app.tenants.terms import Change
from loadtest.attack.attacker import Attacker
from loadtest.attack.corpus.routes import VICTIM
from loadtest.fleet import Fairline, Fleet, free_port, rows, until
from models.jobs.ids import new_id
from models.jobs.replay_requests import ReplayRequest, create
from models.pools import POOLS

POOLS_SERVED = ("short", "medium")
HOSTILE = "mallory"
#: Types that the hostile tenant may use: none that kills workers.
HOSTILE_TYPES = ("count", "echo", "fail", "score_application")
#: Processes of the stack, in the order in which they are stopped.
NAMES = ("api", "open", "worker-short-1", "worker-medium-1", "scheduler")
#: Bytes of text in the hostile tenant's large application, which it exports.
LARGE_BYTES = 900_000
SETTLE_SECONDS = 30.0
#: What the server logs of an error that nobody foresaw.
UNEXPECTED = re.compile(r"Traceback|unexpected error|Error handling request")


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys, those that open nothing included."""

    victim: str
    hostile: str
    operator: str
    #: By what is wrong with each.
    wrong: Mapping[str, str]


class Stage:
    """A running stack with two tenants, and what they have there."""

    def __init__(self, fairline: Fairline, engine: Engine, open_port: int) -> None:
        self.fairline, self.engine = fairline, engine
        #: Another API of the same stack, where callers from this machine need no key.
        self.open_port = open_port
        #: In everything that the victim has.
        self.marker = f"mark{secrets.token_hex(12)}"
        self.attacker = Attacker(fairline.port, self.marker)
        terms = {HOSTILE: Change({"types": HOSTILE_TYPES}), VICTIM: Change()}
        self.tenants = {
            name: create_tenant(engine, name, change).id for name, change in terms.items()
        }
        self.keys = self._issue()
        #: Things of the victim, by their name in the table of routes.
        self.ids: dict[str, str] = {}
        #: What the victim was refused beside its usual requests.
        self.denied: list[str] = []
        #: Of the hostile tenant: an application of a megabyte.
        self.large = ""

    @property
    def port(self) -> int:
        return self.fairline.port

    def _issue(self) -> Keys:
        victim, hostile, operator, revoked = (
            issue_key(self.engine, name) for name in (VICTIM, HOSTILE, None, VICTIM)
        )
        revoke_key(self.engine, revoked.id)
        soon = datetime.now(UTC) + timedelta(seconds=1)
        expired = issue_key(self.engine, VICTIM, expires_at=soon)
        prefix, short, long = victim.key.split("_")
        wrong = {
            "unknown": new_key(),
            "another secret": f"{prefix}_{short}_{long[::-1]}",
            "another id": f"{prefix}_{hostile.id}_{long}",
            "cut": victim.key[:-1],
            "revoked": revoked.key,
            "expired": expired.key,
            "two": f"{victim.key}, Bearer {hostile.key}",
            "NUL-like": f"{victim.key}%00",
        }
        return Keys(victim.key, hostile.key, operator.key, wrong)

    def call(self, key: str, method: str, path: str, body: Any = None) -> Any:
        """A request in order, outside of any measurement; its document."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.fairline.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def plant(self) -> None:
        """Give the victim one of each thing, with the marker, and the hostile tenant its own."""
        text, key = f"{self.marker} has twelve years of Python", self.keys.victim
        submitted = {
            "job": ("/jobs", {"type": "echo", "payload": {"text": text}}),
            "application": ("/applications", {"candidate": self.marker, "payload": text}),
            "scored": ("/applications", {"candidate": f"{self.marker} too", "payload": text}),
            "dead": ("/jobs", {"type": "fail", "payload": {"class": "PERMANENT", "message": text}}),
            "schedule": (
                "/schedules",
                {"name": self.marker, "cron": "0 3 1 1 *", "type": "echo", "payload": text},
            ),
        }
        for thing, (path, body) in submitted.items():
            self.ids[thing] = self.call(key, "POST", path, body)["id"]
        request = ReplayRequest(self.tenants[VICTIM], type=new_id())
        replay = create(self.engine, request, 1)
        assert replay is not None
        self.ids["replay"] = str(replay.id)
        large = {"candidate": "Mallory", "payload": {"text": "x" * LARGE_BYTES}}
        self.large = self.call(self.keys.hostile, "POST", "/applications", large)["id"]
        ended = [self.ids[thing] for thing in ("job", "application", "scored", "dead")]
        until(lambda: self._have_ended(ended), SETTLE_SECONDS, "the victim's jobs")

    def _have_ended(self, ids: list[str]) -> bool:
        return set(self.statuses(ids).values()) <= {"succeeded", "dead"}

    def statuses(self, ids: list[str]) -> dict[str, str]:
        """Jobs by id; one that does not exist is not there."""
        found = rows(
            self.engine,
            "SELECT id::text, status::text FROM jobs WHERE id = ANY(cast(:ids AS uuid[]))",
            ids=ids,
        )
        return {row.id: row.status for row in found}

    def unsettled(self, ids: list[str], seconds: float) -> int:
        """How many of these jobs have not succeeded, after some time to do so."""

        def left() -> int:
            known = self.statuses(ids)
            return sum(known.get(job_id) != "succeeded" for job_id in ids)

        until(lambda: not left(), seconds, pause=0.3)
        return left()

    def victim_rows(self) -> str:
        """A digest of the victim's things, its ordinary jobs left out."""
        [row] = rows(
            self.engine,
            """
            SELECT md5(concat_ws('|',
                (SELECT string_agg(concat_ws(':', id, status, cancel_requested_at), ',' ORDER BY id)
                 FROM jobs WHERE id = ANY(cast(:ids AS uuid[]))),
                (SELECT string_agg(applications::text, ',' ORDER BY id) FROM applications
                 WHERE tenant_id = :tenant),
                (SELECT string_agg(schedules::text, ',' ORDER BY id) FROM schedules
                 WHERE tenant_id = :tenant),
                (SELECT string_agg(concat_ws(':', id, revoked_at), ',' ORDER BY id) FROM api_keys
                 WHERE tenant_id = :tenant),
                (SELECT string_agg(erasures::text, ',') FROM erasures WHERE tenant_id = :tenant)
            )) AS digest
            """,
            ids=[value for thing, value in self.ids.items() if thing not in ("schedule", "replay")],
            tenant=self.tenants[VICTIM],
        )
        return str(row.digest)

    def check_victim_stream(self) -> None:
        """Open an event stream as the victim, who is entitled to one whatever others hold."""
        headers = {"Authorization": f"Bearer {self.keys.victim}"}
        asked = urllib.request.Request(f"{self.fairline.url}/events", headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=10):
                return
        except OSError as refused:
            self.denied.append(f"an event stream: {refused}")

    def answers(self) -> dict[str, int]:
        """Statuses of requests in order, by path: the same before and after."""
        found = {}
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/console/sign-in"):
            found[path] = self.status_of("", path)
        for path in ("/jobs", "/leaderboard", "/tenant", "/schedules", *self.own_paths()):
            found[path] = self.status_of(self.keys.victim, path)
        for path in ("/", "/console/workers", "/operator/tenants"):
            found[path] = self.status_of(self.keys.operator, path)
        return found

    def own_paths(self) -> tuple[str, ...]:
        """Of the victim's things."""
        return f"/jobs/{self.ids['job']}", f"/applications/{self.ids['scored']}/export"

    def status_of(self, key: str, path: str) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        asked = urllib.request.Request(f"{self.fairline.url}{path}", headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code
        except OSError:
            return 0

    def api_processes(self) -> list[psutil.Process]:
        """The API's worker processes, in the order of their start."""
        master = psutil.Process(self.fairline.fleet.children["api"].pid)
        return sorted(master.children(), key=lambda process: process.pid)

    def unexpected_errors(self) -> int:
        """Errors in the API's logs that nobody foresaw."""
        logs = [self.fairline.fleet.log(name) for name in ("api", "open")]
        texts = [log.read_text(errors="replace") for log in logs if log.exists()]
        return sum(len(UNEXPECTED.findall(text)) for text in texts)


def sign_in(stage: Stage, key: str, *, operator: bool = False) -> str:
    """The cookie of a new session, as the sign-in page begins it."""
    name = OPERATOR_COOKIE if operator else TENANT_COOKIE

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    asked = urllib.request.Request(
        f"{stage.fairline.url}/console/sign-in",
        f"key={key}&next=/tenant".encode(),
        {"Sec-Fetch-Site": "same-origin"},
    )
    answer: Any = None
    try:
        answer = urllib.request.build_opener(Stay).open(asked, timeout=20)
    except urllib.error.HTTPError as redirected:
        answer = redirected
    cookies = "; ".join(answer.headers.get_all("Set-Cookie") or ())
    answer.close()
    found = re.search(rf"{name}=([^;]+)", cookies)
    if found is None:
        raise RuntimeError(f"no session was begun: {answer.status}")
    return f"{name}={found[1]}"


@contextmanager
def staged(fleet: Fleet, name: str = "attack") -> Iterator[Stage]:
    """A fresh stack with keys required, ready; stopped afterwards."""
    served = ",".join(POOLS_SERVED)
    blobs = fleet.home / f"{name}-blobs"
    blobs.mkdir()
    fairline = Fairline(
        fleet,
        served_pools=served,
        name=name,
        anonymous_tenant="",
        score_seconds="0",
        blob_url=str(blobs),
    )
    open_port = free_port()
    try:
        for pool in POOLS_SERVED:
            fairline.start_worker(pool)
        fairline.start_scheduler()
        # Loopback is no proxy here: the limit of connections per address applies.
        fairline.start_api(FORWARDED_ALLOW_IPS="192.0.2.1")
        start_open_api(fairline, open_port)
        fairline.await_ready()
        for pool in POOLS_SERVED:
            fairline.await_slots(pool, POOLS[pool].slots)
        with fairline.engine() as engine:
            stage = Stage(fairline, engine, open_port)
            # Directories of tenants are read every second.
            until(lambda: knows(stage), SETTLE_SECONDS, "the new keys")
            stage.plant()
            yield stage
    finally:
        fleet.kill(*NAMES)


def start_open_api(fairline: Fairline, port: int) -> None:
    """An API as ``make up`` has it, on the same database."""
    opened = {"ANONYMOUS_TENANT": "demo", "CONSOLE_OPEN": "true", "PORT": port, "API_WORKERS": 1}
    env = {f"FAIRLINE_{name}": str(value) for name, value in opened.items()}
    argv = command("gunicorn", "-c", "gunicorn.conf.py", "app:create_app()")
    fairline.fleet.start("open", argv, fairline.env | env)
    fairline.fleet.await_answer("open", f"http://127.0.0.1:{port}/healthz")


def knows(stage: Stage) -> bool:
    """Whether each API process has read the keys; which one answers is chance."""
    with suppress(OSError):
        for key in (stage.keys.victim, stage.keys.hostile) * 5:
            stage.call(key, "GET", "/tenant/usage")
        return True
    return False
