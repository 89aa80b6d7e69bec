"""The scoring job: what it hands to the scorer, and what it charges for."""

from __future__ import annotations

import pytest

from tasks.jobs import score_application as job
from tasks.quota import QuotaReading, Report, nobody
from tasks.runtime.context import JobContext, Scratch
from tasks.scorers.protocol import Application, Score, Usage
from tasks.scorers.rubric import CRITERIA, marked


class FakeScorer:
    def __init__(self) -> None:
        self.seen: list[Application] = []

    def prepare(self) -> None: ...

    def score(self, application: Application, report: Report = nobody) -> Score:
        self.seen.append(application)
        report(QuotaReading(used_in=200, used_out=80))
        marks = marked({criterion.key: 71.25 for criterion in CRITERIA})
        quotes = {"clarity": ("Dear all",)}
        return Score(71.25, "Fine.", "fake", "r", "i", marks, quotes, 3, Usage(1200, 80))


def test_the_tenant_is_charged_for_the_tokens_of_its_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scorer, desk = FakeScorer(), Scratch()
    monkeypatch.setattr(job, "current_scorer", lambda: scorer)
    payload = {"candidate": "Ada", "role": "engineer", "payload": {"letter": "Dear all"}}
    result = job.score_application(JobContext("id", desk=desk), payload)
    assert result["score"] == 71.25
    assert (result["evidence"], result["dropped_quotes"]) == ({"clarity": ("Dear all",)}, 3)
    assert desk.tokens == (1200, 80)
    assert desk.readings == [QuotaReading(used_in=200, used_out=80)]
    assert scorer.seen == [Application("Ada", "engineer", {"letter": "Dear all"})]
