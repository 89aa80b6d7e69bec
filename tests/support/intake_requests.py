"""Requests that a cell took in for another one that is away, and the role that hands them over."""

from __future__ import annotations

from pathlib import Path

from app.scheduler.maintenance.intake_handover import IntakeHandover
from models.blobs import open_blobs
from models.cells.intake_jobs import begin_handing_over
from models.cells.placements import change_placement, read_placement
from models.jobs.hand_over import IntakeRequest
from models.jobs.ids import new_id
from models.jobs.submission import IdempotencyKey, Submission
from models.store.session import transaction
from tests.support.away_tenants import close_tenant, open_tenant
from tests.support.cell_databases import TestCell, TestCells

DAY = 86_400.0
DIGEST, OTHER_DIGEST = b"d" * 32, b"o" * 32


def handover(cells: TestCells, blobs: Path) -> IntakeHandover:
    return IntakeHandover(
        cells.host.engine,
        cells.host.leader,
        cells.databases,
        open_blobs(str(blobs)),
        host=cells.host.name,
        keep_seconds=DAY,
    )


def request(
    tenant_id: int, jobs: int = 1, key: str | None = None, digest: bytes = DIGEST, **fields: object
) -> IntakeRequest:
    """A request of the tenant ``acme`` of the home cell."""
    values = {"type": "echo", "pool": "short", "payload": '{"a": 1}', **fields}
    items = tuple(Submission(id=new_id(), tenant_id=tenant_id, **values) for _ in range(jobs))  # type: ignore[arg-type]
    given = None if key is None else IdempotencyKey(key, digest)
    return IntakeRequest("acme", "cell-eu", items, given)


def begin(cells: TestCells, one: IntakeRequest, cell: str = "cell-eu") -> bool:
    """Begin as a leader does that dies then."""
    return bool(begin_handing_over(cells.host.engine, {one.id: cell}, cells.host.leader.epoch))


def spread(cells: TestCells, tenant_id: int, weights: dict[str, float]) -> None:
    """As a move would: the tenant is in the other cell too, with the same id."""
    cells.host.run(
        "INSERT INTO tenants (id, name) OVERRIDING SYSTEM VALUE VALUES (%s, 'acme')", tenant_id
    )
    known = read_placement(cells.registry, "acme")
    assert known is not None
    version = known.version + 1
    with transaction(cells.registry) as connection:
        assert change_placement(connection, "acme", known.version, weights)
    for cell in (cells.home, cells.host):
        (open_tenant if weights.get(cell.name) else close_tenant)(cell.engine, tenant_id, version)


def statuses(cell: TestCell) -> dict[str, str]:
    """The jobs of a cell."""
    rows = cell.rows("SELECT id::text, status::text FROM jobs")
    return {str(job_id): str(status) for job_id, status in rows}


def kept(cells: TestCells) -> list[str]:
    return [str(row[0]) for row in cells.host.rows("SELECT id::text FROM intake_jobs")]


def record_inserts(cell: TestCell) -> None:
    """Note every job that is inserted, also one that is deleted and inserted again."""
    cell.run("CREATE TABLE seen (id uuid)")
    cell.run("""
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END $$""")
    cell.run("CREATE TRIGGER noted AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION note()")


def inserted(cell: TestCell) -> list[str]:
    return sorted(str(row[0]) for row in cell.rows("SELECT id::text FROM seen"))
