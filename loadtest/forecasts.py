"""How far the starts that ``/wait`` predicted were off in a flood: what ``/metrics`` publishes."""

from __future__ import annotations

from sqlalchemy import Engine

from app.reads.gauges import FORECAST_ERROR, FORECASTS
from loadtest.fleet import rows
from loadtest.report import Bar, at_most

#: Mean error of a prediction, relative to the wait.
MOST_PERCENT = 50.0
READ_ERROR = f"""
    SELECT coalesce(sum(total), 0)::int AS made, ({FORECAST_ERROR})::float8 AS error
    FROM tallies WHERE {FORECASTS}
"""


def error_bar(engine: Engine) -> Bar:
    """The mean error of all predictions whose jobs have started; without any, it is not reached."""
    [found] = rows(engine, READ_ERROR)
    percent = float("inf") if found.error is None else 100 * found.error
    return at_most(f"error of {found.made} predicted starts", percent, MOST_PERCENT, " %")
