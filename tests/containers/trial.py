"""What docker-compose.yml must do, tried as a user would: with `docker compose` and by HTTP."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any

from loadtest.chaos.client import Answer, Api
from loadtest.fleet import until
from tests.bare.steps import Failed, Steps
from tests.bare.tree import ROOT

PORT, FLOWER_PORT = 8000, 5555
#: As docs/operations.md has them: to see the passwords, and to make PostgreSQL take over its own.
SHOW = "docker compose exec postgres grep -r . /run/secrets"
ADOPT = (
    "docker compose exec postgres sh -c 'psql -U fairline -c \"ALTER ROLE fairline PASSWORD"
    " \\$\\$$(cat /run/secrets/postgres_password)\\$\\$\"'"
)
#: Passwords that anybody would try.
KNOWN = ("fairline", "guest", "postgres")
UP = "up --detach --no-build --wait"
APPLICATIONS = 100
#: More than the slots of four workers, and each longer than a look at the database takes.
SLEEPS, SLEEP_SECONDS = 60, 5
UP_SECONDS = 300.0
DONE_SECONDS = 120.0
#: A stack that runs jobs of a few seconds is down in this time, on a busy machine too.
DOWN_SECONDS = 60.0


class ComposeTest(Steps):
    """The steps; the first that fails ends the test."""

    def try_everything(self) -> None:
        self.compose(UP)
        with self._screen.step("a key for the tenant demo"):
            issue = "docker compose exec -T api flask --app app keys issue --tenant demo"
            self._headers = {"Authorization": f"Bearer {self.quietly(issue).strip()}"}
        self.look_at_passwords()
        self.use_api()
        self.look_at_flower()
        self.compose(f"{UP} --scale worker=4")
        self.lose_a_worker()
        self.stop_while_jobs_run()
        self.upgrade_from_fixed_passwords()
        self.compose("down --volumes", DOWN_SECONDS)
        if left := self.quietly("docker ps --all --quiet; docker volume ls --quiet"):
            raise Failed(f"`down --volumes` left something: {left}")

    def compose(self, words: str, seconds: float = UP_SECONDS) -> str:
        """`docker compose …`; what it printed."""
        command = f"FAIRLINE_DEMO_TYPES=true docker compose {words}"
        return self.run(ROOT, f"docker compose {words}", command, seconds)

    # The API ------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """One request with the key."""
        with Api(PORT) as api:
            return api.call(method, path, body, self._headers)

    def submit(self, path: str, body: Mapping[str, Any]) -> str:
        """Submit something that must be accepted; its id."""
        answer = self.call("POST", path, body)
        expect(answer.status == 202, f"POST {path}: {answer}")
        return str(answer.document["id"])

    def apply(self, candidate: str) -> str:
        """Submit an application; its id."""
        return self.submit("/applications", {"candidate": candidate, "payload": {"cv": "…"}})

    def job(self, job_id: str) -> dict[str, Any]:
        """What the API says about a job."""
        answer = self.call("GET", f"/jobs/{job_id}")
        expect(answer.status == 200, f"GET /jobs/{job_id}: {answer}")
        return dict(answer.document)

    def has_status(self, job_id: str, status: str) -> bool:
        return bool(self.job(job_id)["status"] == status)

    def await_status(self, job_id: str, status: str) -> None:
        """Poll a job until it has that status."""
        until(lambda: self.has_status(job_id, status), DONE_SECONDS, f"{job_id} to be {status}")

    def leaderboard(self) -> list[str]:
        """The candidates on it."""
        with Api(PORT) as api:
            answer = api.call("GET", "/leaderboard?role=general&limit=500", None, self._headers)
        expect(answer.status == 200, f"GET /leaderboard: {answer}")
        return [entry["candidate"] for entry in answer.document["entries"]]

    def use_api(self) -> None:
        """An application from its submission to the leaderboard, a job in each pool."""
        with self._screen.step("the API, the console, a job in each pool"), Api(PORT) as api:
            expect(api.call("GET", "/leaderboard").status == 401, "no key is needed")
            for page, status in (("/", 303), ("/console/sign-in", 200), ("/docs", 200)):
                answer = api.call("GET", page, None, {"Accept": "text/html"})
                expect(answer.status == status, f"GET {page}: {answer}")
            until(lambda: api.call("GET", "/readyz").status == 200, 30.0, "/readyz to say 200")
            echo = self.submit("/jobs", {"type": "echo", "payload": {"hello": "short"}})
            count = self.submit("/jobs", {"type": "count", "payload": {"to": 2}})
            ada = self.apply("Ada")
            for job_id in (echo, count, ada):
                self.await_status(job_id, "succeeded")
            expect(self.leaderboard() == ["Ada"], "Ada is not on the leaderboard")
            queues = self.quietly(
                "docker compose exec -T rabbitmq rabbitmqctl --quiet list_queues name type"
            )
            listed = [line for line in queues.splitlines() if line.endswith("quorum")]
            expect(len(listed) == 3, f"other quorum queues than those of the pools: {listed}")

    # Passwords ----------------------------------------------------------------------------

    def passwords(self) -> dict[str, str]:
        """What the volume of secrets has, by file."""
        found = self.quietly(SHOW.replace("exec", "exec -T"))
        lines = [line.partition(":") for line in found.splitlines()]
        return {name.removeprefix("/run/secrets/"): value for name, _, value in lines}

    def look_at_passwords(self) -> None:
        """They are random, in files that only their reader can read, and nowhere else."""
        with self._screen.step("passwords"):
            found = self.passwords()
            database, owner = found["postgres_app_password"], found["postgres_password"]
            expect(len(set(found.values())) == len(found) == 10, f"other files: {found.keys()}")
            expect(all(len(value) >= 32 for value in found.values()), "a password is short")
            modes = "docker compose exec -T postgres sh -c 'stat -c %a /run/secrets/*'"
            expect(set(self.quietly(modes).split()) == {"600"}, "others may read passwords")
            read = "docker compose exec -T api sh -c 'cat /run/secrets/* 2>/dev/null || true'"
            expect(database in self.quietly(read), "the API cannot read the database's URL")
            expect(owner not in self.quietly(read), "the API reads the owner's password")
            expect(found["grafana_password"] not in self.quietly(read), "the API reads Grafana's")
            everything = self.quietly("docker ps --all --quiet | xargs docker inspect")
            hidden = ("postgres_password", "postgres_app_password", "rabbitmq_password")
            for name in (*hidden, "flower_basic_auth"):
                expect(found[name] not in everything, f"{name} is in the environment")
            for password in KNOWN:
                expect(not self.signs_in(password), f"PostgreSQL takes {password}")
            expect(self.signs_in(owner), "PostgreSQL refuses its password")
            expect(self.signs_in(database, "fairline_app"), "PostgreSQL refuses the application's")
            users = "docker compose exec -T rabbitmq rabbitmqctl --quiet list_users"
            said = self.quietly(users).split()
            expect("fairline" in said and "flower" in said, f"users of RabbitMQ: {said}")
            expect("guest" not in said, f"users of RabbitMQ: {said}")

    def signs_in(self, password: str, login: str = "fairline") -> bool:
        """Whether PostgreSQL lets somebody in who comes by the network."""
        psql = f"PGPASSWORD={password} psql -h postgres -U {login} -d fairline -Atc 'SELECT 1'"
        script = f'docker compose exec -T postgres sh -c "{psql} 2>&1 || true"'
        return self.quietly(script).strip() == "1"

    def upgrade_from_fixed_passwords(self) -> None:
        """Volumes of a version that had no volume of secrets: as the changelog says."""
        board = self.leaderboard()
        before = self.passwords()
        self.compose("down", DOWN_SECONDS)
        self.quietly("docker volume rm fairline_secrets")
        self.compose("up --detach --no-build --wait postgres")
        expect(not self.signs_in(self.passwords()["postgres_password"]), "nothing is to be done")
        self.quietly(ADOPT.replace("exec", "exec -T"))
        self.compose(UP)
        with self._screen.step("other passwords, the same data"):
            expect(not before.items() & self.passwords().items(), "a password was kept")
            expect(self.leaderboard() == board, "the leaderboard is another")
            self.await_status(self.submit("/jobs", {"type": "echo", "payload": {}}), "succeeded")

    # Flower -------------------------------------------------------------------------------

    def look_at_flower(self) -> None:
        """Needs its password, lists the workers of all pools, cannot stop one."""
        token = base64.b64encode(self.passwords()["flower_basic_auth"].encode()).decode()
        headers = {"Authorization": f"Basic {token}"}
        with self._screen.step("Flower"), Api(FLOWER_PORT) as flower:

            def workers() -> set[str]:
                found = flower.call("GET", "/api/workers?refresh=1", None, headers).document or {}
                return {name.partition("@")[0] for name in found}

            for page in ("/", "/workers", "/tasks", "/broker", "/api/workers"):
                status = flower.call("GET", page).status
                expect(status == 401, f"Flower answers {status} without its password: {page}")
                status = flower.call("GET", page, None, headers).status
                expect(status == 200, f"Flower answers {status}: {page}")
            queues = flower.call("GET", "/api/queues/length", None, headers).document
            listed = {queue["name"] for queue in queues["active_queues"]}
            for pool in ("short", "medium", "long"):
                wanted = {pool, f"{pool}: waiting in PostgreSQL"}
                expect(wanted <= listed, f"Flower lists these queues: {listed}")
            pools = {"worker-short", "worker-medium", "worker-long"}
            until(lambda: workers() == pools, 30.0, "Flower to list all workers")
            for name in flower.call("GET", "/api/workers", None, headers).document:
                answer = flower.call("POST", f"/api/worker/shutdown/{name}", None, headers)
                expect(answer.status == 403, f"Flower may shut {name} down: {answer}")

    # Containers ---------------------------------------------------------------------------

    def quietly(self, script: str) -> str:
        """Run a short script in the tree that the user would not; what it printed."""
        return self._tree.read(ROOT, script)

    def lose_a_worker(self) -> None:
        """Kill a container's processes under load: it comes back, and every job ends once."""
        with self._screen.step(f"{APPLICATIONS} applications, one of four workers killed"):
            ids = [self.apply(f"Candidate {number}") for number in range(APPLICATIONS)]
            sleep = {"type": "sleep", "payload": {"seconds": SLEEP_SECONDS}}
            ids += [self.submit("/jobs", sleep) for _ in range(SLEEPS)]
            worker = "fairline-worker-2"
            pid = self.quietly(f"docker inspect --format '{{{{.State.Pid}}}}' {worker}").strip()
            host = self.quietly(f"docker inspect --format '{{{{.Config.Hostname}}}}' {worker}")
            busy = (
                "SELECT count(*) FROM jobs WHERE status = 'running'"
                f" AND worker LIKE '%@{host.strip()}:%'"
            )
            until(lambda: self.sql(busy) != "0", 60.0, f"{worker} to run a job")
            self.quietly(f"kill -KILL {pid}")
            for job_id in ids:
                self.await_status(job_id, "succeeded")
            expected = {"Ada", *(f"Candidate {number}" for number in range(APPLICATIONS))}
            found = self.leaderboard()
            expect(len(found) == len(expected), f"{len(found)} entries on the leaderboard")
            expect(set(found) == expected, "the leaderboard names others than applied")
            until(lambda: self.is_back(worker), 60.0, f"{worker} to come back")

    def sql(self, statement: str) -> str:
        """What the database answers."""
        psql = "docker compose exec -T postgres psql -U fairline -d fairline -At"
        return self.quietly(f'{psql} -c "{statement}"').strip()

    def is_back(self, worker: str) -> bool:
        states = "{{.RestartCount}} {{.State.Health.Status}}"
        said = self.quietly(f"docker inspect --format '{states}' {worker}")
        return said.split() == ["1", "healthy"]

    def stop_while_jobs_run(self) -> None:
        """Stop and start again: nobody has to be killed, and no job is lost or run twice."""
        short = self.submit("/jobs", {"type": "sleep", "payload": {"seconds": 4}})
        long = self.submit("/jobs", {"type": "count", "payload": {"to": 20}})
        for job_id in (short, long):
            self.await_status(job_id, "running")
        living = "SELECT name FROM processes WHERE heartbeat_at > now() - interval '10 s'"
        left = set(self.sql(living).split())
        psql = "docker compose exec --detach postgres psql -U fairline -d fairline"
        self.quietly(f"{psql} -c 'SELECT pg_sleep(600)'")  # a client that does not leave
        began = time.monotonic()
        self.compose("stop", DOWN_SECONDS)
        took = time.monotonic() - began
        codes = "docker ps --all --format '{{.Names}} {{.Status}}'"
        killed = [line for line in self.quietly(codes).splitlines() if " Exited (0) " not in line]
        expect(not killed, f"after {took:.0f} s some had not stopped cleanly: {killed}")
        self.compose(f"{UP} --scale worker=4")
        with self._screen.step("what ran when it stopped"):
            listed = left & set(self.sql("SELECT name FROM processes").split())
            expect(not listed, f"some that left are still listed as living: {listed}")
            self.await_status(short, "succeeded")
            self.await_status(long, "succeeded")
            expect(self.job(short)["attempt"] == 1, f"it was cut off: {self.job(short)}")
            steps = [step for step, _ in self.job(long)["result"]["steps"]]
            expect(steps == list(range(1, 21)), f"steps were repeated or lost: {steps}")


def expect(holds: bool, otherwise: str) -> None:
    """Fail with that message unless it holds."""
    if not holds:
        raise Failed(otherwise)
