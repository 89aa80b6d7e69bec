"""The list of all tenants is merged by the bytes of their names: every cell sorts so, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import issue_key
from tests.integration.conftest import fresh_database
from tests.support.installation import Installation, installed

NEXT = re.compile(r'<([^>]+)>; rel="next"')
#: In most collations ``_`` comes before ``-``, or both are passed over.
NAMES = ("t-a", "t-b", "t-c", "t0", "t_a", "t_b", "ta", "tb")


@pytest.fixture
def cells(postgres: Running[EmbeddedPostgres], tmp_path: Path) -> Iterator[Installation]:
    """Two cells."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        yield stack.enter_context(installed(urls, tmp_path))


def test_every_tenant_is_listed_once_in_the_order_of_bytes(cells: Installation) -> None:
    """The server of the tests knows no other order, so the plan has to tell."""
    operator = issue_key(cells.registry, None, "op").key
    for number, name in enumerate(NAMES):
        cells.tenant(name, f"cell-{1 + number % 2}")
    cells.refresh()
    plans: list[str] = []

    def explain(_: Any, cursor: Any, sql: str, parameters: Any, *__: Any) -> None:
        if "starts_with(tenant.name" in sql:
            cursor.execute(sql.replace("SELECT", "EXPLAIN SELECT", 1), parameters)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))

    for app in cells.router.served.apps():
        event.listen(app.extensions["fairline"].engine, "before_cursor_execute", explain)
    names, path = [], "/operator/tenants?limit=3"
    while path:
        answer = cells.call(operator, "GET", path)
        assert answer.status_code == 200, answer.text
        names += [tenant["name"] for tenant in answer.get_json()["tenants"]]
        found = NEXT.fullmatch(answer.headers.get("Link", ""))
        path = found[1] if found else ""
    assert [name for name in names if name in NAMES] == sorted(NAMES) == list(NAMES)
    assert len(plans) >= 6, "three pages of two cells"
    for plan in plans:
        assert re.search(r'Sort Key: .*name.* COLLATE "C"', plan), plan
        assert re.search(r"Filter: .*name.* > ", plan), plan
