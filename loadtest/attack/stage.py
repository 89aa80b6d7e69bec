"""The attacked stack: keys are required, one tenant is the victim, another is hostile."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from typing import Any

import psutil
from sqlalchemy import Engine

from app.stack.ports import free_port
from app.tenants.changes import create_tenant, issue_key, revoke_key
from app.tenants.keys import new_key
from app.tenants.terms import Change
from loadtest.attack.attacker import Attacker
from loadtest.attack.corpus.routes import VICTIM
from loadtest.chaos.client import Answer, Api
from loadtest.fleet import Fairline, Fleet, rows, until
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
FORM = "application/x-www-form-urlencoded"
#: What the server logs of an error that nobody foresaw.
UNEXPECTED = re.compile(r"Traceback|unexpected error|Error handling request")
SETTLED = """
    SELECT id FROM jobs WHERE id = ANY(cast(:ids AS uuid[])) AND status::text = ANY(:statuses)
"""
VICTIM_ROWS = """
    SELECT concat_ws(':', id, status, cancel_requested_at) AS thing FROM jobs
    WHERE id = ANY(cast(:ids AS uuid[]))
    UNION ALL SELECT applications::text FROM applications WHERE tenant_id = :tenant
    UNION ALL SELECT schedules::text FROM schedules WHERE tenant_id = :tenant
    UNION ALL SELECT erasures::text FROM erasures WHERE tenant_id = :tenant
    UNION ALL SELECT concat_ws(':', id, revoked_at) FROM api_keys WHERE tenant_id = :tenant
    ORDER BY thing
"""


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

    def call(self, key: str, method: str, path: str, body: Any = None) -> Answer:
        """A request in order, outside of any measurement."""
        with Api(self.port, seconds=20.0) as api:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return api.call(method, path, body, headers)

    def sign_in(self, key: str, cookie: str) -> str:
        """The token of a new session, as the sign-in page begins it."""
        headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": FORM}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("POST", "/console/sign-in", f"key={key}&next=/tenant", headers)
            answer = connection.getresponse()
            set_cookies = "; ".join(answer.headers.get_all("Set-Cookie") or ())
        found = re.search(rf"{cookie}=([^;]+)", set_cookies)
        if found is None:
            raise RuntimeError(f"no session was begun: {answer.status}")
        return found[1]

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
            self.ids[thing] = self.call(key, "POST", path, body).document["id"]
        request = ReplayRequest(self.tenants[VICTIM], type=new_id())
        replay = create(self.engine, request, 1)
        assert replay is not None
        self.ids["replay"] = str(replay.id)
        large = {"candidate": "Mallory", "payload": {"text": "x" * LARGE_BYTES}}
        posted = self.call(self.keys.hostile, "POST", "/applications", large)
        self.large = posted.document["id"]
        ended = [self.ids[thing] for thing in ("job", "application", "scored", "dead")]
        self.unsettled(ended, "succeeded", "dead")

    def unsettled(self, ids: list[str], *statuses: str) -> int:
        """How many of these jobs have none of these statuses, after some time to get there."""

        def count() -> int:
            return len(ids) - len(rows(self.engine, SETTLED, ids=ids, statuses=list(statuses)))

        until(lambda: not count(), SETTLE_SECONDS, pause=0.3)
        return count()

    def victim_rows(self) -> list[Any]:
        """The victim's things, its ordinary jobs left out."""
        ids = [value for thing, value in self.ids.items() if thing not in ("schedule", "replay")]
        return [*rows(self.engine, VICTIM_ROWS, ids=ids, tenant=self.tenants[VICTIM])]

    def check_victim_stream(self) -> None:
        """Open an event stream as the victim, who is entitled to one whatever others hold."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            headers = {"Authorization": f"Bearer {self.keys.victim}"}
            connection.request("GET", "/events", headers=headers)
            status = connection.getresponse().status
        if status != 200:
            self.denied.append(f"an event stream: {status}")

    def answers(self) -> dict[str, int]:
        """Statuses of requests in order, by path: the same before and after."""
        own = f"/jobs/{self.ids['job']}", f"/applications/{self.ids['scored']}/export"
        paths = {
            "": ("/healthz", "/readyz", "/metrics", "/openapi.json", "/console/sign-in"),
            self.keys.victim: ("/jobs", "/leaderboard", "/tenant", "/schedules", *own),
            self.keys.operator: ("/", "/console/workers", "/operator/tenants"),
        }
        asked = [(key, path) for key, some in paths.items() for path in some]
        return {path: self.call(key, "GET", path).status for key, path in asked}

    def api_processes(self) -> list[psutil.Process]:
        """The API's worker processes, in the order of their start."""
        master = psutil.Process(self.fairline.fleet.children["api"].pid)
        return sorted(master.children(), key=lambda process: process.pid)

    def unexpected_errors(self) -> int:
        """Errors in the API's logs that nobody foresaw."""
        logs = [self.fairline.fleet.log(name) for name in ("api", "open")]
        texts = [log.read_text(errors="replace") for log in logs if log.exists()]
        return sum(len(UNEXPECTED.findall(text)) for text in texts)


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
    # As ``make up`` has it: callers from this machine need no key.
    opened = {"ANONYMOUS_TENANT": "demo", "CONSOLE_OPEN": "true", "API_WORKERS": "1"}
    try:
        for pool in POOLS_SERVED:
            fairline.start_worker(pool)
        fairline.start_scheduler()
        # Loopback is no proxy here: the limit of connections per address applies.
        fairline.start_api(FORWARDED_ALLOW_IPS="192.0.2.1")
        env = {f"FAIRLINE_{name}": value for name, value in opened.items()}
        fairline.start_api("open", **env, FAIRLINE_PORT=str(open_port))
        fleet.await_answer("open", f"http://127.0.0.1:{open_port}/healthz")
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


def knows(stage: Stage) -> bool:
    """Whether each API process has read the keys; which one answers is chance."""
    keys = (stage.keys.victim, stage.keys.hostile) * 5
    return all(stage.call(key, "GET", "/tenant/usage").status == 200 for key in keys)
