"""Cells with a tenant that moves between them: a registry and three migrated databases."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from app.scheduler.maintenance.mover import Mover
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.cells import row_mover
from models.cells.databases import CellDatabases
from models.cells.fences import StaleRunner
from models.cells.move_steps import MoveRunner
from models.cells.moves import (
    Move,
    MoveStep,
    raise_fence,
    read_move,
    request_move,
    take_move,
)
from models.cells.placements import PlacementRow, place_tenant, read_placement
from models.cells.registry import CellRow, add_cell, identify, open_registry, set_cell_state
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.jobs.submission import IdempotencyKey, Submission, SubmissionGroup
from models.jobs.transfer import JobRows, JobTables, put_jobs
from models.schema import Base
from models.settings import DatabaseSettings
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole
from models.store.session import open_engine, transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import TRUNCATE

NAMES = ("cell-a", "cell-b", "cell-c")
A, B, C = NAMES
DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{"ok": true}')
DEAD = Ending(
    JobStatus.DEAD, tries_spent=1, error_class=FailureClass.PERMANENT, error_message="broken"
)
RETRY = Ending(
    JobStatus.SCHEDULED, tries_spent=1, delay_seconds=3600, error_class=FailureClass.APP_ERROR
)
#: Every table with rows of a tenant, and the column that says whose.
OF_TENANT = sorted(
    table.name
    for table in Base.metadata.tables.values()
    if "tenant_id" in table.columns and table.name != "away_tenants"
)
#: Who waits within a transaction in this database is ended: as if its process had died.
END_IDLE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle in transaction'
      AND pid <> pg_backend_pid()
"""


@dataclass
class MovingCells:
    """The cells, each as a `DatabaseFixture`, and what runs moves between them."""

    registry: Engine
    settings: DatabaseSettings
    databases: CellDatabases
    cells: Mapping[str, DatabaseFixture]
    tenant_id: int = 0
    key: str = ""
    name: str = "acme"
    #: Moves that were run, by the name of their runner.
    runners: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**9)))

    def place(self, name: str = "acme", cell: str = A) -> int:
        """A new tenant in a cell; its id."""
        profile = create_tenant(self.cells[cell].engine, name, Change({"tier_limits": False}))
        self.key = issue_key(self.cells[cell].engine, name).key
        with transaction(self.registry) as connection:
            place_tenant(connection, name, {cell: 1.0})
        return profile.id

    def request(self, **weights: float) -> Move:
        """Have the tenant moved: ``b=1`` is the second cell."""
        wanted = {f"cell-{name}": weight for name, weight in weights.items()}
        return request_move(self.registry, self.name, wanted)

    @property
    def registry_url(self) -> str:
        return self.settings.registry_url

    @property
    def move(self) -> Move | None:
        return read_move(self.registry, self.name)

    @property
    def step(self) -> MoveStep:
        assert self.move is not None
        return self.move.step

    @property
    def error(self) -> str:
        assert self.move is not None
        return self.move.error

    @property
    def placement(self) -> PlacementRow:
        found = read_placement(self.registry, self.name)
        assert found is not None
        return found

    def runner(self, known_seconds: float = 0.0) -> MoveRunner:
        """A runner that takes the move over, whoever has it."""
        self.execute("UPDATE moves SET lease_expires_at = to_timestamp(0)")
        move = take_move(self.registry, f"runner {next(self.runners)}")
        assert move is not None, "there is no move"
        return MoveRunner(self.databases, move, known_seconds=known_seconds)

    def turn(self) -> bool:
        """One turn of a runner that is then thrown away; whether it ended its step."""
        runner = self.runner()
        try:
            return runner.run_once()
        except StaleRunner as stale:
            # It is not: tests replace runners so often that fences are ahead of the clock.
            raise_fence(self.registry, runner.move, stale.known)
            return False

    def run_to(self, step: MoveStep | None) -> None:
        """Make all steps before this one, each with a runner of its own, and each twice."""
        deadline = time.monotonic() + 30
        while (move := self.move) is not None and move.step is not step:
            assert time.monotonic() < deadline, f"the move stays at {move}"
            if not self.turn():
                continue
            # As if nobody had noted that the step is done.
            if move.step not in (MoveStep.REMOVE, MoveStep.UNDO):
                self.execute("UPDATE moves SET step = %(step)s", step=move.step.value)
                while not self.turn():
                    assert time.monotonic() < deadline, f"the move stays at {move}"
        assert (self.move is None) is (step is None), "the move has ended"

    def run(self, **weights: float) -> None:
        """Move the tenant, from beginning to end."""
        self.request(**weights)
        self.finish()

    def finish(self) -> None:
        """Make all steps that are left."""
        deadline = time.monotonic() + 30
        while (move := self.move) is not None:
            assert time.monotonic() < deadline, f"the move stays at {move}"
            self.turn()

    def execute(self, sql: str, **parameters: Any) -> None:
        """A statement in the registry."""
        with self.registry.connect() as connection:
            connection.exec_driver_sql(sql, parameters)

    def registry_rows(self, sql: str) -> Any:
        """What a statement in the registry returns, as its owner."""
        with open_as_owner(self.settings) as owner, owner.connect() as connection:
            return connection.exec_driver_sql(sql).all()

    def set_state(self, cell: str, state: str) -> None:
        """Let a cell take no new tenants, or take them again."""
        with open_as_owner(self.settings) as owner:
            set_cell_state(owner, cell, state)

    @contextmanager
    def knowing_former(self, cell: str, former: str) -> Iterator[CellDatabases]:
        """The databases as a process has them that knows a cell by its former address, which is
        now that of the cell ``former``; the registry has the right one."""
        databases = CellDatabases(self.registry, self.settings, role=DatabaseRole.SCHEDULER)
        statement = "UPDATE cells SET database_url = %s WHERE name = %s"
        with open_as_owner(self.settings) as owner, owner.connect() as connection:
            rows = databases.cells()
            connection.exec_driver_sql(statement, (rows[former].database_url, cell))
            databases.engine(cell)
            connection.exec_driver_sql(statement, (rows[cell].database_url, cell))
        try:
            yield databases
        finally:
            databases.close()

    def crash_between_commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a runner die when another cell has the jobs of A, before A has deleted them."""

        def put_and_die(connection: Connection, rows: JobRows, tables: JobTables) -> None:
            put_jobs(connection, rows, tables)
            self.cells[A].query(END_IDLE)

        with monkeypatch.context() as patch:
            patch.setattr(row_mover, "put_jobs", put_and_die)
            with pytest.raises(StateStoreError):
                self.turn()

    def submit(self, cell: str, key: str | None = None, **fields: Any) -> Any:
        """Submit one job of the tenant to a cell; what became of it."""
        values: dict[str, Any] = {
            "id": new_id(),
            "tenant_id": self.tenant_id,
            "type": "echo",
            "pool": "medium",
            "payload": "{}",
            **fields,
        }
        known = None
        if key is not None:
            known = IdempotencyKey(key, b"digest of " + key.encode(), self.placement.version)
        group = SubmissionGroup((Submission(**values),), known)
        return admit_group(self.cells[cell].engine, [group], express=False)[0]

    def admitted(self, cell: str, key: str | None = None, **fields: Any) -> str:
        """The id of a job that a cell admitted."""
        return str(self.submit(cell, key, **fields).ids[0])

    def start(self, cell: str, **fields: Any) -> JobRef:
        """A job that runs in a cell."""
        self.cells[cell].leader.run_once(0.0)  # what was before may have taken longer than a lease
        return self.cells[cell].start(tenant_id=self.tenant_id, **fields).ref

    def ended(self, cell: str, ending: Ending = DONE, **fields: Any) -> str:
        """A job that has ended in a cell."""
        ref = self.start(cell, **fields)
        assert self.cells[cell].settle(ref, ending, run_seconds=1.5)
        return ref.id

    def jobs(self) -> dict[str, list[tuple[str, str]]]:
        """Where each job of the tenant is: cells and states by id."""
        found: dict[str, list[tuple[str, str]]] = {}
        statement = "SELECT id::text, status::text AS status FROM jobs WHERE tenant_id = %s"
        for name, cell in self.cells.items():
            for row in cell.query(statement, self.tenant_id):
                found.setdefault(row.id, []).append((name, row.status))
        return found

    def cell_of(self, job_id: str) -> str:
        """The one cell that has this job."""
        [(cell, _)] = self.jobs()[job_id]
        return cell

    def usage(self) -> tuple[Any, ...]:
        """Jobs, runs and seconds that the tenant used, in all cells together."""
        statement = """SELECT coalesce(sum(jobs), 0)::int, coalesce(sum(runs), 0)::int,
                              coalesce(round(sum(slot_seconds)::numeric, 6), 0)
                       FROM usage WHERE tenant_id = %s"""
        sums = [cell.query(statement, self.tenant_id)[0] for cell in self.cells.values()]
        return tuple(sum(column) for column in zip(*sums, strict=True))

    def counts(self, tenant_id: int | None = None) -> Counter[str]:
        """Counts of ended jobs of the tenant, or of tenant 0, in all cells together."""
        statement = """SELECT coalesce(sum(succeeded), 0)::int AS succeeded,
                              coalesce(sum(dead), 0)::int AS dead,
                              coalesce(sum(queued), 0)::int AS queued,
                              coalesce(sum(scheduled), 0)::int AS scheduled
                       FROM job_counts WHERE tenant_id = %s"""
        found: Counter[str] = Counter()
        for cell in self.cells.values():
            whose = self.tenant_id if tenant_id is None else tenant_id
            found.update(cell.query(statement, whose)[0]._asdict())
        return found

    def miscounted(self) -> list[Any]:
        """Counts of live jobs that differ from a recount. Ends are counted where they happened."""
        return [
            row
            for cell in self.cells.values()
            for row in cell.miscounted()
            if not JobStatus(row.status).terminal
        ]

    def forget(self) -> None:
        """Empty all databases, but for the tenant ``acme`` in the first cell."""
        emptied = "TRUNCATE transfer_marks, away_tenants, moves, placements, tenant_copies"
        with open_as_owner(self.settings) as owner, owner.connect() as connection:
            connection.exec_driver_sql(f"{TRUNCATE}; {emptied}")
        for cell in self.cells.values():
            cell.execute(f"{TRUNCATE}; {emptied}; DELETE FROM tenants")
            cell.leader.run_once(0.0)
        self.name = "acme"
        self.tenant_id = self.place()

    def left_in(self, cell: str) -> dict[str, int]:
        """Rows of the tenant by table, where there are any."""
        found = {}
        for table in OF_TENANT:
            statement = f"SELECT count(*) AS rows FROM {table} WHERE tenant_id = %s"
            found[table] = self.cells[cell].query(statement, self.tenant_id)[0].rows
        statement = "SELECT count(*) AS rows FROM tenants WHERE id = %s"
        found["tenants"] = self.cells[cell].query(statement, self.tenant_id)[0].rows
        return {table: rows for table, rows in found.items() if rows}


@contextmanager
def moving_cells(postgres: Running[EmbeddedPostgres]) -> Iterator[MovingCells]:
    """Fresh databases."""
    server = postgres.service
    with ExitStack() as stack:
        urls = []
        for _ in ("registry", *NAMES):
            database = f"test_{new_id().replace('-', '')}"
            server.create_database(database, template="template_fairline")
            stack.callback(server.drop_database, database)
            urls.append(server.url(database))
        settings = DatabaseSettings(database_url=urls[0], registry_url=urls[0], db_pool_size=8)
        registry = open_registry(settings, role=DatabaseRole.SCHEDULER)
        stack.callback(registry.dispose)
        cells = {}
        for number, (name, url) in enumerate(zip(NAMES, urls[1:], strict=True), 1):
            engine = open_engine(settings.model_copy(update={"database_url": url}))
            stack.callback(engine.dispose)
            row = CellRow(name, number, "", url, "amqp://127.0.0.1:1//", "", "open")
            with open_as_owner(settings) as owner:
                identify(engine, add_cell(owner, row, number=number), first=number == 1)
            cells[name] = DatabaseFixture(engine)
        databases = CellDatabases(registry, settings, role=DatabaseRole.SCHEDULER)
        stack.callback(databases.close)
        yield MovingCells(registry, settings, databases, cells)


@contextmanager
def open_as_owner(settings: DatabaseSettings) -> Iterator[Engine]:
    engine = open_engine(settings)
    yield engine
    engine.dispose()


def run_mover(registry_url: str, name: str, lease_seconds: float) -> None:
    """The process of a mover, until it is killed."""
    settings = DatabaseSettings(database_url=registry_url, registry_url=registry_url)
    registry = open_registry(settings, process=name, role=DatabaseRole.SCHEDULER)
    databases = CellDatabases(registry, settings, process=name, role=DatabaseRole.SCHEDULER)
    mover = Mover(databases, name, known_seconds=0.05, lease_seconds=lease_seconds)
    while True:
        if not mover.run_once(time.monotonic()):
            time.sleep(0.05)
