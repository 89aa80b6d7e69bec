"""Pricing: what usage costs. Pure.

Computed exactly and rounded once, half up, to a millionth of the currency. The costs of days add up
to the cost of the sum within half a millionth each: an invoice should sum what it lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

MILLIONTH = Decimal("0.000001")
#: More digits than any use and price have together, so nothing is lost.
EXACT = Context(prec=200, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Price per unit. The defaults are an example, not a market price."""

    #: A slot for a second: 7.2 cents an hour, about a shared core with its memory.
    per_slot_second: Decimal = Decimal("0.00002")
    #: Base fee of a job that ended, whatever it did: ten per million.
    per_job: Decimal = Decimal("0.00001")
    #: Model tokens, as small models are listed.
    per_million_tokens_in: Decimal = Decimal("1")
    per_million_tokens_out: Decimal = Decimal("5")
    #: ISO 4217.
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Use:
    """What was used."""

    #: Jobs that ended.
    jobs: int
    #: Seconds that their runs held a slot.
    slot_seconds: Decimal
    tokens_in: int
    tokens_out: int


def cost(use: Use, prices: PriceList) -> Decimal:
    """The cost of ``use`` in the currency of ``prices``, to the millionth."""
    with localcontext(EXACT):
        tokens = (
            use.tokens_in * prices.per_million_tokens_in
            + use.tokens_out * prices.per_million_tokens_out
        )
        exact = (
            use.jobs * prices.per_job
            + use.slot_seconds * prices.per_slot_second
            + tokens.scaleb(-6)
        )
        return exact.quantize(MILLIONTH)
