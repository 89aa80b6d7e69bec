"""Cron expressions in words: right or silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.schedules.page import cron_words
from app.tenants.cron import BadCron, read_rule


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/1 * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", ""),  # not every seven: after :56 comes :00
        ("0 * * * *", "every hour"),
        ("30 * * * *", "every hour at 30 past"),
        ("0 */6 * * *", "every 6 hours"),
        ("15 */6 * * *", "every 6 hours at 15 past"),
        ("0 */5 * * *", ""),
        ("0 3 * * *", "every day at 03:00"),
        ("5 14 1 * *", "on day 1 of every month at 14:05"),
        ("5 14 L * *", "on the last day of every month at 14:05"),
        ("0 9 * * 1-5", "Monday to Friday at 09:00"),
        ("0 9 * * mon", "every Monday at 09:00"),
        ("0 9 * * 0", "every Sunday at 09:00"),
        ("0 9 * * 7", "every Sunday at 09:00"),
        ("0 9 1 * 1", ""),  # both days: either will do
        ("0 9 * 1 *", ""),
        ("0 9,17 * * *", ""),
        ("7 1-23/2 * * MON#1", ""),
        ("nonsense", ""),
    ],
)
def test_simple_expressions_have_words(cron: str, words: str) -> None:
    assert cron_words(cron) == words


FIELD = st.sampled_from(
    ["*", "0", "5", "23", "*/2", "*/0", "1-5", "L", "MON", "1,2", "99", "²", ""]
)


@given(st.lists(FIELD, min_size=4, max_size=6).map(" ".join))
def test_whatever_is_an_expression_can_be_asked(cron: str) -> None:
    words = cron_words(cron)
    try:
        read_rule(cron, "UTC")
    except BadCron:
        return
    assert words == "" or words.startswith(("every", "on ", "Monday to"))
