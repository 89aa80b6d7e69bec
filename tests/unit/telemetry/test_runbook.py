"""The runbook, docs/operations.md: what to do about each alert, where its ``runbook_url`` leads."""

from __future__ import annotations

import re

import pytest

from tests import ROOT
from tests.unit.telemetry.test_alerts import RULES, TESTS

PAGE = "docs/operations.md"
TEXT = (ROOT / PAGE).read_text()
ROWS = {
    name: (anchor, cells.split(" | "))
    for anchor, name, cells in re.findall(
        r'^\| <a id="(\w+)"></a>`(Fairline\w+)` \| (.+) \|$', TEXT, re.M
    )
}


def anchors(text: str) -> set[str]:
    """What a link within the page may lead to: headings, as they are shown, and rows with an id."""
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    headings = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
    return headings | set(re.findall(r'<a id="([\w-]+)">', text))


def test_every_alert_has_a_row_and_every_row_an_alert() -> None:
    assert set(ROWS) == set(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_leads_to_its_row(alert: str) -> None:
    anchor, cells = ROWS[alert]
    assert RULES[alert]["annotations"]["runbook_url"] == f"{PAGE}#{anchor}"
    assert anchor == alert.lower()
    assert len(cells) == 3 and all(len(cell) > 10 for cell in cells), "means, look at first, do"


def test_alerts_that_fire_say_where_the_runbook_is() -> None:
    for case in TESTS:
        for checked in case["alert_rule_test"]:
            for fired in checked["exp_alerts"]:
                url = fired["exp_annotations"]["runbook_url"]
                assert url == f"{PAGE}#{checked['alertname'].lower()}"


def test_links_within_the_page_lead_somewhere() -> None:
    linked = set(re.findall(r"\]\(#([\w-]+)\)", TEXT))
    assert linked and linked <= anchors(TEXT)
