"""Keys are rotated while jobs run: nothing is lost, and at the end the new key alone is enough."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from app.cli import encryption as commands
from app.errors import ValidationFailed
from app.reads.contents import readable_detail
from app.reads.job_views import read_jobs
from app.tenants import schedules
from models.blobs import BlobStore, open_blobs, payload_key
from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import decrypt_json, encrypt_blob, encrypt_json, key_ring
from models.jobs.ids import new_id
from models.jobs.reencrypt import CONTENT, count_step, reencrypt_step
from models.jobs.replay import replay_dead
from models.store.session import connect, transaction
from tasks.context import JobContext
from tasks.errors import Permanent
from tests.support.database_fixture import DatabaseFixture
from tests.support.encryption_keys import encrypting, new_key
from tests.support.one_worker import OneWorker, one_worker

OLD, NEW = new_key("old"), new_key("new")
LARGE = "x" * 70_000
JOBS = CONTENT[0]


@pytest.fixture
def one(database: DatabaseFixture, tmp_path: Path) -> Iterator[OneWorker]:
    with one_worker(database, blobs=tmp_path) as made:
        made.act = act
        yield made


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return open_blobs(str(tmp_path))


def act(ctx: JobContext, payload: Any) -> Any:
    """Fails once, and resumes from its checkpoint: large if its payload is."""
    ctx.log.info("given %s", payload)
    if ctx.load_checkpoint() is None:
        ctx.checkpoint(payload)
        raise ValueError(f"failed on {payload}")
    if payload == "refuse":
        raise Permanent("refused")
    return {"given": payload, "saved": ctx.load_checkpoint()}


def submit(one: OneWorker, blobs: BlobStore, payload: Any) -> str:
    """A job, with its payload in the blob store if it is large."""
    text, job_id = json.dumps(payload), new_id()
    if len(text) < len(LARGE):
        return one.database.submit(id=job_id, pool="short", payload=text)
    place = Place(1, job_id, ContentKind.PAYLOAD)
    blobs.put(payload_key(job_id), encrypt_blob(text.encode(), place))
    fields = {"payload": "null", "payload_blob": payload_key(job_id)}
    return one.database.submit(id=job_id, pool="short", **fields)


def run_all(one: OneWorker, most: int = 100) -> None:
    """Run what waits, now, at most so many; as the leader, also if that takes long."""
    one.database.leader.run_once(0.0)
    one.database.execute(
        "UPDATE jobs SET status = 'queued' WHERE status = 'scheduled' AND pool = 'short'"
    )
    if refs := one.dispatched(most):
        one.execute(refs)
    one.flush()


def run_to_the_end(one: OneWorker) -> None:
    """Run until nothing waits."""
    for _ in range(20):
        run_all(one)
        if not one.database.query("SELECT 1 FROM jobs WHERE finished_at IS NULL LIMIT 1"):
            return


def rotate(database: DatabaseFixture, blobs: BlobStore) -> Counter[str]:
    """Passes over everything until nothing is left; how many values were written."""
    ring = key_ring()
    assert ring is not None
    counts: Counter[str] = Counter()
    for column in CONTENT:
        for done in commands.passes(database.engine, blobs, ring, column):
            assert not done.unreadable
        counts[column.name] += done.written
        assert not done.left
    return counts


def keys_in_use(database: DatabaseFixture) -> set[str]:
    found: Counter[str] = Counter()
    for column in CONTENT:
        found += count_step(database.engine, column, column.start)[0]
    return set(found)


def stored_result(database: DatabaseFixture, job_id: str) -> Any:
    """The result of the row, decrypted."""
    sql = "SELECT result::text AS result FROM jobs WHERE id = %s"
    text = database.query(sql, job_id)[0].result
    return text and json.loads(decrypt_json(text, Place(1, job_id, ContentKind.RESULT)))


def test_rotation_under_work_loses_nothing(one: OneWorker, blobs: BlobStore) -> None:
    database, expected = one.database, dict[str, Any]()

    def add(count: int) -> None:
        for number in range(count):
            payload = f"{number}{LARGE}" if number % 5 == 0 else {"number": number}
            expected[submit(one, blobs, payload)] = payload

    with encrypting(""):
        add(5)
        run_all(one)
    with encrypting(OLD):
        add(20)
        run_all(one, 15)
        run_all(one, 10)
        schedule = schedules.create(database.engine, a_schedule())
        assert schedule.payload == '{"of": "a schedule"}'
    assert {"", "old"} <= keys_in_use(database)
    with encrypting(f"{NEW},{OLD}"):
        working = threading.Thread(target=lambda: [(add(4), run_all(one, 7)) for _ in range(12)])
        working.start()
        while working.is_alive():
            rotate(database, blobs)
        working.join()
        run_to_the_end(one)
        rotate(database, blobs)
        assert rotate(database, blobs).total() == 0, "all was done before"
    assert keys_in_use(database) == {"new"}
    with encrypting(NEW):
        assert len(expected) == 5 + 20 + 48
        for job_id, payload in expected.items():
            assert stored_result(database, job_id) == {"given": payload, "saved": payload}
        again = schedules.read(database.engine, 1, schedule.id)
        assert again is not None and again.payload == schedule.payload
    assert database.miscounted() == []
    states = Counter(row.status for row in database.query("SELECT status FROM jobs"))
    assert states == {"succeeded": len(expected)}


def a_schedule() -> schedules.RecurringSchedule:
    given = {"name": new_id(), "cron": "0 0 1 1 *", "timezone": "UTC", "type": "echo"}
    more: dict[str, Any] = {"overlap": "allow", "catch_up": "one", "priority": 0, "paused": True}
    payload = '{"of": "a schedule"}'
    return schedules.RecurringSchedule(new_id(), 1, payload=payload, **given, **more)


def test_jobs_of_a_retired_key_are_dead_letters_that_can_be_replayed(
    one: OneWorker, blobs: BlobStore
) -> None:
    database = one.database
    with encrypting(OLD):
        ids = [submit(one, blobs, payload) for payload in ("small", LARGE)]
    with encrypting(NEW):
        run_all(one)
        for job_id in ids:
            with connect(database.engine) as connection:
                [job] = read_jobs(connection, [job_id]).values()
            assert job.status == "dead"
            why = "is encrypted with the key 'old', which is not in FAIRLINE_ENCRYPTION_KEYS."
            assert job.document["error"]["class"] == "PERMANENT"
            assert job.document["error"]["message"] == f"The payload {why}"
    with encrypting(f"{NEW},{OLD}"):
        assert len(replay_dead(database.engine, 1, ids)) == 2
        run_all(one)
        run_all(one)
        assert [stored_result(database, job_id) for job_id in ids] == [
            {"given": payload, "saved": payload} for payload in ("small", LARGE)
        ]


def test_a_value_that_was_changed_or_locked_meanwhile_is_left(
    one: OneWorker, blobs: BlobStore
) -> None:
    database = one.database
    with encrypting(OLD):
        locked, free = (submit(one, blobs, name) for name in ("locked", "free"))
    with encrypting(f"{NEW},{OLD}"), transaction(database.engine) as connection:
        ring = key_ring()
        assert ring is not None
        connection.exec_driver_sql("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", (locked,))
        done = reencrypt_step(database.engine, blobs, ring, JOBS, JOBS.start)
        assert (done.looked, done.written, done.left) == (2, 1, 1)
    prefixes = {
        row.id: row.key
        for row in database.query(
            "SELECT id::text AS id, split_part(payload::text, ':', 3) AS key FROM jobs"
        )
    }
    assert prefixes == {locked: "old", free: "new"}


def test_a_blob_of_a_job_that_was_removed_meanwhile_does_not_come_back(
    one: OneWorker, blobs: BlobStore, tmp_path: Path
) -> None:
    class Removing:
        """The job is retired between the reading of its blob and the writing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(blobs, name)

        def get(self, key: str) -> bytes:
            data = blobs.get(key)
            one.database.execute("DELETE FROM jobs")
            blobs.delete(key)
            return data

    with encrypting(OLD):
        submit(one, blobs, LARGE)
    with encrypting(f"{NEW},{OLD}"):
        ring = key_ring()
        assert ring is not None
        done = reencrypt_step(one.database.engine, Removing(), ring, JOBS, JOBS.start)  # type: ignore[arg-type]
    assert (done.written, done.left) == (0, 1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_why_ticks_were_skipped_is_encrypted_and_rotated(
    database: DatabaseFixture, blobs: BlobStore
) -> None:
    schedule = a_schedule()
    with encrypting(OLD):
        reasons = [schedules.stored_reason(schedule, "payload.maple is not known"), "overlap"]
        assert "maple" not in str(reasons)
        payload = encrypt_json('"tick"', schedules.place_of(schedule))
    for reason in reasons:
        database.execute(
            "INSERT INTO events (tenant_id, kind, detail) VALUES (1, 'schedule_skipped', %s)",
            json.dumps({"schedule": schedule.id, "reason": reason}),
        )
    with encrypting(f"{NEW},{OLD}"):
        assert rotate(database, blobs)["events.detail"] == 1
        assert schedules.payload_of(replace(schedule, payload=payload)) == "tick"
    rows = database.query("SELECT detail::text AS detail FROM events ORDER BY id")
    with encrypting(NEW):
        told = [readable_detail("schedule_skipped", row.detail, 1, None) for row in rows]
        assert [json.loads(one)["reason"] for one in told] == [
            "payload.maple is not known",
            "overlap",
        ]
        with pytest.raises(ValidationFailed, match="'old', which is not in"):
            schedules.payload_of(replace(schedule, payload=payload))


class Terminal:
    """Runs the command as ``flask`` would."""

    def __init__(self) -> None:
        app = Flask("app", static_folder=None)
        app.cli.add_command(commands.encryption)
        self._runner = app.test_cli_runner()

    def run(self, line: str) -> Result:
        return self._runner.invoke(args=line.split())


def test_the_commands_say_what_is_encrypted_and_rotate_it(
    one: OneWorker, blobs: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "database", lambda: one.database.engine)
    monkeypatch.setattr(commands, "open_blobs", lambda _url: blobs)
    terminal = Terminal()
    with encrypting(""):
        submit(one, blobs, "readable")
        refused = terminal.run("encryption rotate")
        assert refused.exit_code == 1 and "is empty" in refused.stderr
    with encrypting(OLD):
        submit(one, blobs, LARGE)
    with encrypting(f"{NEW},{OLD}"):
        status = terminal.run("encryption status").stdout
        assert "none: readable" in status and "old: decrypts only" in status
        rotated = terminal.run("encryption rotate")
        assert rotated.exit_code == 0, rotated.output
        assert "2 values encrypted with the key new." in rotated.stdout
        acts = one.database.query("SELECT target FROM audit_log WHERE what = 'content.reencrypt'")
        assert [row.target for row in acts] == ["new"]
        status = terminal.run("encryption status").stdout
        assert "new: encrypts" in status and "old" not in status and "readable" not in status
    with encrypting(new_key("newest")):
        assert "new: NOT CONFIGURED" in terminal.run("encryption status").stdout
        failed = terminal.run("encryption rotate")
        assert failed.exit_code == 1
        assert "2 left as they are: The payload is encrypted with the key 'new'" in failed.stderr
