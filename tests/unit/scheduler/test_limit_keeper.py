"""When the broker is asked to keep the limits of queues."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from app.broker.management import ManagementApi
from app.scheduler.maintenance.limit_keeper import REFUSED_SECONDS, LimitKeeper

URL = "amqp://guest:guest@a,b//"


@pytest.mark.parametrize("refusal", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
def test_after_a_refusal_the_broker_is_asked_again_in_an_hour(
    monkeypatch: pytest.MonkeyPatch, refusal: HTTPStatus
) -> None:
    asked = []
    answers = iter([refusal, HTTPStatus.CREATED, HTTPStatus.OK])

    def answer(node: ManagementApi, _policy: dict[str, Any]) -> HTTPStatus:
        asked.append(node.host)
        return next(answers)

    monkeypatch.setattr(ManagementApi, "version", lambda _: "4.2.0")
    monkeypatch.setattr(ManagementApi, "keep_policy", answer)
    keeper = LimitKeeper(URL)
    for seconds in range(0, int(REFUSED_SECONDS), 60):
        keeper.run_once(1000.0 + seconds)
    assert asked == ["a"]
    for seconds in (0, 60):
        keeper.run_once(1000.0 + REFUSED_SECONDS + seconds)
    assert asked == ["a", "b", "b"], "one that may is asked each time"
