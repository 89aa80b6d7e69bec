"""What a tenant used in several cells: one line for each day and pool, priced once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from app.api.routes.tenant import amounts, line_amounts
from app.cells.merge import Document
from app.policy.pricing import PriceList, Use, cost
from app.reads.usage import UsageLine, total_of


def sum_usage(reports: Sequence[Document]) -> Document:
    """The report of all cells, by those of each."""
    first = reports[0]
    prices = PriceList(
        **{name: Decimal(price) for name, price in first["prices"].items()},
        currency=first["currency"],
    )
    lines = merge_lines((line_of(line) for one in reports for line in one["days"]), prices)
    return first | {"total": amounts(total_of(lines)), "days": [*map(line_amounts, lines)]}


def line_of(line: Document) -> UsageLine:
    """A line of a report; seconds are added as they are printed."""
    seconds = Decimal(repr(line["slot_seconds"]))
    use = Use(line["jobs"], seconds, line["tokens_in"], line["tokens_out"])
    spent = Decimal(line["cost"])
    return UsageLine(line["runs"], use, spent, date.fromisoformat(line["day"]), line["pool"])


def merge_lines(lines: Iterable[UsageLine], prices: PriceList) -> list[UsageLine]:
    """One line for each day and pool, priced once."""
    totals: dict[tuple[Any, str], UsageLine] = {}
    for line in lines:
        known = totals.get((line.day, line.pool))
        use, runs = line.use, line.runs
        if known is not None:
            before = known.use
            use = Use(
                before.jobs + use.jobs,
                before.slot_seconds + use.slot_seconds,
                before.tokens_in + use.tokens_in,
                before.tokens_out + use.tokens_out,
            )
            runs += known.runs
        totals[line.day, line.pool] = UsageLine(runs, use, cost(use, prices), line.day, line.pool)
    return [totals[place] for place in sorted(totals)]
